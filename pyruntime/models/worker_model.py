"""The models of this process: each is loaded once, in a thread that alone uses it, for all that call it.

`acquire` and `release` are for any thread; `WorkerModel.vectors` and `ready` for any event loop.
"""

# Why a thread of its own for each model, and not the pool of the operator: a model that is called from two
# threads at a time takes the memory of two batches and gains nothing, and some are not made for it. The loop
# goes on meanwhile, whether the model lets go of the GIL or not.
#
# Why the thread takes all calls that wait, up to a window, and sorts their texts by length. A batch of a
# model is as wide as its longest text, so short ones beside it are paid for as if they were long. The
# operator cannot sort, as rows belong to calls, and calls have their order. And as single rows or small
# batches that wait are put together, any `capacity` and any form of call gets full batches. If such a batch
# fails, each of its calls is computed alone: the operator looks for the bad row of a batch by calling its
# halves, which may wait here together.
#
# Why a model outlasts its last user. A worker of Spark closes resources that no task has used for ten
# seconds, and the next job may come later. So it stays until another model is loaded.
#
# Why it is noted in a file that a model cannot be loaded: Spark ends the process of a task that failed, and
# starts the task again in another one, which would load for as long, only to fail. The note is of a stage in
# one executor: a later job tries again.

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pillarbox.ledger.private_files import replacing
from pillarbox.models.device import Seat, stage_of_task, turn_on
from pillarbox.models.errors import ModelUnavailable
from pillarbox.models.host_folder import host_folder
from pillarbox.models.kinds import Model, ModelSpec, Vectors, load
from pillarbox.redaction import redacted
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

MAX_NOTE_AGE_S = 3600.0
"""Seconds after which a note is of an executor that is long gone, whose number another one has."""


class Limits(NamedTuple):
    """The texts that are sorted together, and the tokens of a batch, at most."""

    window: int
    batch_tokens: int


class _Call:
    """Texts of one call, and their vectors as far as they are there."""

    __slots__ = ("block", "left", "result", "texts")

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.left = len(texts)
        self.block: Vectors | None = None
        self.result: Future[Vectors] = Future()


class WorkerModel:
    """One model of this process on one device. Its thread begins with the first user."""

    def __init__(self, spec: ModelSpec, device: str, limits: Limits) -> None:
        self.users = 0
        self.process = os.getpid()
        self._spec, self._asked, self._limits = spec, device, limits
        self._loaded: Future[Model] = Future()
        self._calls: deque[_Call] = deque()
        self._news = threading.Condition()
        self._ends = False
        self._seat: Seat | None = None
        self._thread = threading.Thread(target=self._run, name="pillarbox-model", daemon=True)

    def start(self) -> None:
        """Begin to load. Raises RuntimeError or MemoryError where there is no room for a thread."""
        start_thread(self._thread)

    @property
    def failed(self) -> bool:
        """True if the model could not be loaded."""
        return self._loaded.done() and self._loaded.exception() is not None

    async def ready(self) -> Model:
        """The loaded model. Raises ModelUnavailable, each time anew."""
        # One that waits may be cancelled; the load is for all.
        try:
            return await asyncio.shield(asyncio.wrap_future(self._loaded))
        except ModelUnavailable as error:
            raise ModelUnavailable(error.model, error.device, error.reason) from error.__cause__

    async def vectors(self, texts: Sequence[str]) -> Vectors:
        """The vectors of `texts`, in their order. Raises ModelUnavailable, and what the model raises.

        A call that is cancelled is left out of what has not begun.
        """
        # spec: WorkerModel!Call
        if self.process != os.getpid():
            raise RuntimeError(
                f"LocalEmbeddings: was opened in process {self.process}, of which this one is a fork: a "
                "model is loaded anew in each process; open it here"
            )
        call = _Call(texts)
        with self._news:
            if self.failed:
                self._loaded.result()
            if self._ends:
                raise RuntimeError("LocalEmbeddings: is closed")
            self._calls.append(call)
            self._news.notify()
        return await asyncio.wrap_future(call.result)

    def stop(self, *, wait: bool = False) -> None:
        """Let the thread end after the batch that it computes. wait: until it has."""
        with self._news:
            self._ends = True
            self._news.notify()
        if wait and self._thread.is_alive():
            self._thread.join()

    # -- in the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            model = self._load()
        except BaseException as error:
            # spec: WorkerModel!Fail
            with self._news:
                self._loaded.set_exception(error)
            self._end(error)
            return
        # spec: WorkerModel!Load
        self._loaded.set_result(model)
        while calls := self._take():
            try:
                self._compute(model, calls)
            except BaseException as error:
                # A panic of a library in Rust is not an Exception. Without its thread all calls would wait.
                panic = RuntimeError(f"the model raised {type(error).__name__}: {error}")
                for call in calls:
                    _fail(call, error if isinstance(error, Exception) else panic)
        self._end(RuntimeError("LocalEmbeddings: is closed"))

    def _end(self, error: BaseException) -> None:
        """Leave the GPU, and fail the calls that still wait."""
        if self._seat is not None:
            self._seat.close()
        with self._news:
            calls, self._calls = [*self._calls], deque()
        for call in calls:
            _fail(call, error)

    def _load(self) -> Model:
        note = _note_of(self._spec, self._asked)
        if note is not None and (before := _read_note(note)) is not None:
            raise before
        began = time.monotonic()
        log.debug("loading the model %r", self._spec.path)
        try:
            model = load(self._spec, self._asked, self._take_gpu)
        except BaseException as error:
            reason = redacted(f"{type(error).__name__}: {error}")
            failed = ModelUnavailable(self._spec.path, self._asked, reason)
            if note is not None:
                _write_note(note, failed)
            raise failed from error
        log.info(
            "the model %r is loaded on %s in process %d, in %.1f s",
            self._spec.path,
            model.device,
            os.getpid(),
            time.monotonic() - began,
        )
        return model

    def _take_gpu(self, count: int) -> int:
        self._seat = Seat(count)
        return self._seat.index

    def _take(self) -> list[_Call]:
        """The calls that wait, up to a window of texts, one at least; none at the end."""
        # spec: WorkerModel!Take
        taken: list[_Call] = []
        count = 0
        with self._news:
            while not taken and not self._ends:
                self._news.wait_for(lambda: self._calls or self._ends)
                while self._calls and (not taken or count + len(self._calls[0].texts) <= self._limits.window):
                    call = self._calls.popleft()
                    # False for a call that was cancelled.
                    if call.result.set_running_or_notify_cancel():
                        taken.append(call)
                        count += len(call.texts)
        return taken

    def _compute(self, model: Model, calls: Sequence[_Call]) -> None:
        """Give each call the vectors of its texts, computed in batches of texts that are about as long.

        Raises what the model raises when it counts tokens.
        """
        places = [(call, place) for call in calls for place in range(len(call.texts))]
        lengths = model.tokens([call.texts[place] for call, place in places])
        for batch in batches_of(lengths, self._limits.batch_tokens):
            # spec: WorkerModel!Compute
            wanted = [places[each] for each in batch if not places[each][0].result.done()]
            if not wanted:
                continue
            try:
                _hand_out(wanted, _encode(model, [call.texts[place] for call, place in wanted]))
            except Exception as error:
                self._encode_apart(model, wanted, error)

    def _encode_apart(self, model: Model, places: Sequence[tuple[_Call, int]], error: Exception) -> None:
        """Compute the texts of each call alone, as a batch of several calls has failed."""
        of_calls: dict[int, list[tuple[_Call, int]]] = {}
        for place in places:
            of_calls.setdefault(id(place[0]), []).append(place)
        for mine in of_calls.values():
            try:
                if len(of_calls) == 1:
                    raise error
                _hand_out(mine, _encode(model, [call.texts[place] for call, place in mine]))
            except Exception as own:
                _fail(mine[0][0], own)


def _encode(model: Model, texts: Sequence[str]) -> Vectors:
    """The vectors of one batch. Raises what the model raises, and ValueError for another number of them."""
    with turn_on(model.device):
        made = model.encode(texts)
    if made.ndim != 2 or len(made) != len(texts):
        raise ValueError(
            f"the model gave an array of shape {made.shape} for {len(texts):,} texts: must be (texts, "
            "dimensions)"
        )
    return made


def batches_of(lengths: Sequence[float], batch_tokens: float) -> list[list[int]]:
    """The places of texts with so many tokens, in batches: by length, the longest first.

    A batch is as wide as its first text, and has at most `batch_tokens` tokens, those that fill it up
    included, unless it is one text alone. Pure.
    """
    found: list[list[int]] = []
    width = 0.0
    # What does not fit into memory fails first, and not after a minute.
    for place in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if found and (len(found[-1]) + 1) * width <= batch_tokens:
            found[-1].append(place)
        else:
            found.append([place])
            width = max(lengths[place], 1.0)
    return found


def _hand_out(places: Sequence[tuple[_Call, int]], made: Vectors) -> None:
    for (call, place), vector in zip(places, made, strict=True):
        if call.block is None:
            call.block = np.empty((len(call.texts), made.shape[1]), np.float32)
        call.block[place] = vector
        call.left -= 1
        if not call.left and not call.result.done():
            call.result.set_result(call.block)


def _fail(call: _Call, error: BaseException) -> None:
    # One that waits may be cancelled at any time.
    with suppress(InvalidStateError):
        call.result.set_exception(error)


# -- the models of this process ---------------------------------------------------------------------


_models: dict[Any, WorkerModel] = {}
_mutex = threading.Lock()
_abandoned: list[Any] = []
"""Models of the process of which this one is a fork: to release them may call a library that is not there."""


def acquire(spec: ModelSpec, device: str, limits: Limits) -> WorkerModel:
    """The model of this process, of which `release` lets go; its load begins with the first user."""
    key = spec.identity, device, limits
    with _mutex:
        found = _models.get(key)
        if found is not None and found.failed and not found.users:
            found = None
        if found is None:
            for idle in [each for each, model in _models.items() if not model.users]:
                _models.pop(idle).stop()
            found = WorkerModel(spec, device, limits)
            found.start()
            _models[key] = found
        found.users += 1
        return found


def release(model: WorkerModel) -> None:
    """A user of a model has ended."""
    with _mutex:
        model.users -= 1


def _begin_anew() -> None:
    # spec: WorkerModel!Fork
    global _models, _mutex
    _abandoned.append(_models)
    _models, _mutex = {}, threading.Lock()


@atexit.register
def _stop_all() -> None:
    # A thread within a library must not outlive what that library has in memory.
    for model in [*_models.values()]:
        model.stop(wait=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


# -- notes of failures --------------------------------------------------------------------------------


def _note_of(spec: ModelSpec, device: str) -> str | None:
    """The path of the note that says of the stage that runs here that its model cannot be loaded."""
    stage = stage_of_task()
    if stage is None:
        return None
    # The representation of a function is another one in each process.
    words = repr((replace(spec, kind=spec.kind_name), device))
    of = hashlib.sha256(words.encode()).hexdigest()[:16]
    with suppress(OSError):
        return os.path.join(host_folder("failed"), f"{stage}-{of}.json")
    return None


def _read_note(path: str) -> ModelUnavailable | None:
    try:
        if time.time() - os.stat(path).st_mtime > MAX_NOTE_AGE_S:
            os.unlink(path)
            return None
        with open(path, encoding="utf-8") as file:
            return ModelUnavailable(*json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _write_note(path: str, error: ModelUnavailable) -> None:
    folder = os.path.dirname(path)
    with suppress(OSError):
        for name in os.listdir(folder):
            old = os.path.join(folder, name)
            if time.time() - os.stat(old).st_mtime > MAX_NOTE_AGE_S:
                os.unlink(old)
    with suppress(OSError), replacing(path) as file:
        file.write(json.dumps([error.model, error.device, error.reason]).encode())
