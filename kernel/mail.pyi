from collections.abc import Callable
from typing import Any, Final

MIN_PRIORITY: Final[int]
MAX_PRIORITY: Final[int]

class Mail:
    def __init__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        priority: int = 0,
        urgent: bool = False,
        deferrable: bool = False,
        description: str | Callable[[], object] | None = None,
    ) -> None: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def priority(self) -> int: ...
    @property
    def urgent(self) -> bool: ...
    @property
    def deferrable(self) -> bool: ...
    @property
    def description(self) -> str: ...
    def run(self) -> Any: ...

class NativeCall:
    def __call__(self) -> None: ...
