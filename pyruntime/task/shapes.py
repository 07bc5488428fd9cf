"""Whether an object has the methods that its part in a task asks for: an early error. Plain, any thread."""

from __future__ import annotations


def check_methods(argument: str, value: object, *names: str) -> None:
    """Raise TypeError, naming what is missing, unless `value` has all these methods."""
    missing = [name for name in names if not callable(getattr(value, name, None))]
    if missing:
        raise TypeError(f"{argument}={value!r}: must have {', '.join(names)}; it has no {', '.join(missing)}")
