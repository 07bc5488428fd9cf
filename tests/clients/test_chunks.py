"""Texts that are counted and split by tokens, by real tokenizers of each kind, as columns of Arrow."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.frames import add_methods, count_tokens, split_text
from tests.clients.kinds_of_tokenizers import KINDS, WORDS
from tests.search import examples

ROOT = Path(__file__).resolve().parents[2]
LONG = " ".join(WORDS)
PARTS = [
    *("Hello", "world.", " ", "  ", "\n", "\n\n", "\n  ", "\r\n", "e.g.", " it's", "12345", "/bar", "!!!\n"),
    *("愛してる。", "नमस्ते", "🇩🇪🇫🇷", "👩🏽\u200d🚀", "e\u0301", "각", "\u0600", "、", "”"),
]
texts = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(PARTS), max_size=60).map("".join),
    st.integers(0, 200).map(lambda start: LONG[start:]),
)
each_kind = pytest.mark.parametrize("kind", KINDS)


def tokenizer_of(kind: str) -> Any:
    return KINDS[kind]()


def counts(strings: list[str], kind: str) -> list[int]:
    found: list[int] = count_tokens(pa.array(strings, pa.string()), tokenizer_of(kind)).to_pylist()
    return found


def special(kind: str) -> int:
    return 2 if "special" in kind else 0


def chunks_of(text: str, max_tokens: int, overlap: int, kind: str) -> list[dict[str, Any]]:
    column = pa.array([text])
    (found,) = split_text(column, max_tokens, overlap, tokenizer=tokenizer_of(kind), details=True).to_pylist()
    return found


@pytest.mark.contract(
    "The chunks of a text without what they repeat are the text, none has more than max_tokens by its own "
    "count, none is empty, and each repeats at most the overlap.",
    convicts=[
        "chunk_edges_not_counted",
        "overlap_not_counted",
        "seam_behind_a_space",
        "normalizers_ignored",
        "spaces_are_chunks",
    ],
)
@each_kind
@settings(max_examples=examples(300))
@given(text=texts, extra=st.integers(0, 40), data=st.data())
def test_chunks_are_the_text(kind: str, text: str, extra: int, data: st.DataObject) -> None:
    max_tokens = 8 + special(kind) + extra
    overlap = data.draw(st.integers(0, max_tokens - special(kind) - 1))
    found = chunks_of(text, max_tokens, overlap, kind)
    assert [text[each["start"] : each["end"]] for each in found] == [each["text"] for each in found]
    assert counts([each["text"] for each in found], kind) == [each["tokens"] for each in found]
    assert all(each["tokens"] <= max_tokens or len(each["text"]) == 1 for each in found)
    assert all(each["text"].strip() for each in found)
    covered, repeated = 0, []
    for each in found:
        # White space that would be a chunk alone.
        assert not text[covered : each["start"]].strip()
        repeated.append(text[each["start"] : covered])
        assert each["end"] > covered
        covered = each["end"]
    assert not text[covered:].strip()
    assert all(count - special(kind) <= overlap for count in counts(repeated, kind))


@pytest.mark.contract(
    "A character that is several tokens counts with the chunk that has it.",
    convicts=["token_within_character"],
)
@pytest.mark.parametrize("text", ["\n\x81\u0f80\u0f80", "\n🙃\u0f80 a\n🙃 b\n🙃🙃\u0f80"])
def test_a_character_of_several_tokens_counts_with_its_chunk(text: str) -> None:
    found = chunks_of(text, 8, 0, "cl100k_base")
    assert counts([each["text"] for each in found], "cl100k_base") == [each["tokens"] for each in found]
    assert max(each["tokens"] for each in found) <= 8


@pytest.mark.contract(
    "No chunk begins or ends within a character and its accents, emoji or syllable that has room.",
    convicts=["accents_apart", "flags_apart"],
)
@pytest.mark.parametrize("kind", ["cl100k_base", "estimate", "GPT-2"])
@settings(max_examples=examples(300))
@given(
    text=st.one_of(texts, st.text("🇩🇪e\u0301각कि\u094d👩\u200d🚀a ", max_size=80)),
    extra=st.integers(0, 40),
    data=st.data(),
)
def test_what_is_read_as_one_character_is_not_parted(
    kind: str, text: str, extra: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, 7 + extra))
    between = {match.end() for match in regex.finditer(r"\X", text)} | {0}
    for each in chunks_of(text, 8 + extra, overlap, kind):
        for place in {each["start"], each["end"]} - between:
            (parted,) = (
                match.group() for match in regex.finditer(r"\X", text) if match.start() < place < match.end()
            )
            assert counts([parted], kind)[0] > min(8 + extra, overlap)


@pytest.mark.contract("Consonants that a sign joins stay together.", convicts=["syllables_apart"])
def test_a_syllable_is_not_parted() -> None:
    found = chunks_of("क्ष" * 20, 20, 5, "cl100k_base")
    assert len(found) > 3
    assert {each["text"].replace("क्ष", "") for each in found} == {""}


def test_a_chunk_ends_with_a_paragraph_a_sentence_or_a_word() -> None:
    def split(text: str, max_tokens: int) -> list[str]:
        (found,) = split_text(pa.array([text]), max_tokens, tokenizer="cl100k_base").to_pylist()
        return found

    paragraphs = "One two three four.\n\nFive six. Seven eight nine. Ten eleven"
    assert split(paragraphs, 8) == ["One two three four.\n\n", "Five six. Seven eight nine.", " Ten eleven"]
    assert split("Red is e.g. the box of letters. A box. Ten eleven twelve", 12) == [
        "Red is e.g. the box of letters.",
        " A box. Ten eleven twelve",
    ]
    assert split("one two three four five six seven eight nine ten eleven", 8) == [
        "one two three four five six seven eight",
        " nine ten eleven",
    ]
    assert split("愛は寛容です。愛は情け深い。", 10) == ["愛は寛容です。", "愛は情け深い。"]


def test_a_chunk_is_as_full_as_the_ends_of_sentences_let_it() -> None:
    text = " ".join(["A pillar box is red."] * 200)
    (found,) = split_text(pa.array([text]), 64, 12, tokenizer="cl100k_base", details=True).to_pylist()
    assert {each["tokens"] for each in found[:-1]} == {60}
    assert {first["end"] - second["start"] for first, second in itertools.pairwise(found)} == {42}


@each_kind
def test_nulls_stay_and_texts_without_words_have_no_chunks(kind: str) -> None:
    column = pa.array([None, "", " \n", "light"])
    tokens = count_tokens(column, tokenizer_of(kind)).to_pylist()
    assert tokens[0] is None and tokens[1] == special(kind)
    assert split_text(column, 12, tokenizer=tokenizer_of(kind)).to_pylist() == [None, [], [], ["light"]]
    assert count_tokens(column[:0], tokenizer_of(kind)).to_pylist() == []
    details = split_text(column[:1], 12, tokenizer=tokenizer_of(kind), details=True)
    assert details.to_pylist() == [None]
    assert details.type.value_type.names == ["text", "start", "end", "tokens"]


@pytest.mark.contract(
    "The estimate gives at least the tokens of English prose and of code, and at most half more.",
    convicts=["words_weigh_nothing", "letters_weigh_nothing", "estimate_far_too_high"],
)
@pytest.mark.parametrize("kind", ["cl100k_base", "o200k_base"])
def test_the_estimate_is_near_what_is_counted(kind: str) -> None:
    files = (Path(__file__), ROOT / "README.md", ROOT / "docs" / "embeddings.md")
    pages = [LONG * 5, *(path.read_text() for path in files)]
    for real, estimated in zip(counts(pages, kind), counts(pages, "estimate"), strict=True):
        assert real <= estimated <= 1.5 * real


def test_columns_of_all_kinds_of_strings_are_taken() -> None:
    expected = [5, None, 2]
    strings = ["one two three four five", None, "six seven"]
    arrays = [
        pa.array(strings),
        pa.array(strings, pa.large_string()),
        pa.array(strings).dictionary_encode(),
        pa.array(["x", *strings])[1:],
    ]
    for column in arrays:
        assert count_tokens(column, "cl100k_base").to_pylist() == expected
    chunked = count_tokens(pa.chunked_array([strings[:1], strings[1:]]), "cl100k_base")
    assert isinstance(chunked, pa.ChunkedArray) and chunked.to_pylist() == expected
    assert count_tokens(pa.nulls(2), "cl100k_base").to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 7}, "max_tokens=7: must be at least 8"),
        ({"max_tokens": "9"}, "max_tokens='9': must be an int"),
        ({"max_tokens": 9, "overlap": 9}, "overlap=9: must be from 0 to 8"),
        ({"max_tokens": 9, "overlap": -1}, "overlap=-1: must be from 0 to 8"),
        ({"max_tokens": 9, "tokenizer": 5}, "tokenizer=5: must be the name of a tiktoken encoding"),
        ({"max_tokens": 9, "tokenizer": None}, "tokenizer=None: must be the name of a tiktoken encoding"),
        ({"max_tokens": 9, "details": 1}, "details=1: must be True or False"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as found:
        split_text(pa.array(["a"]), **arguments)
    assert message in str(found.value)


@pytest.mark.parametrize("part", ["\u1100", "क्", "😀\u200d", "e\u0301", ".", "?!", "🇩🇪"])
@pytest.mark.parametrize("overlap", [0, 32])
def test_a_long_text_without_words_is_split(part: str, overlap: int) -> None:
    text = part * (400_000 // len(part))
    (found,) = split_text(pa.array([text]), 256, overlap).to_pylist()
    assert (overlap > 0 or "".join(found) == text) and max(count_tokens(pa.array(found)).to_pylist()) <= 256


def lines_to_split(text: str) -> int:
    """The lines of Python that run to split a text."""
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        split_text(pa.array([text]), 256, 32)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.contract(
    "A text without words that is twice as long takes twice as many steps.",
    convicts=["grapheme_read_to_its_end", "flags_read_from_each"],
)
@pytest.mark.parametrize("part", ["क्", "🇩🇪"])
def test_a_text_without_words_that_is_twice_as_long_takes_twice_as_many_steps(part: str) -> None:
    # What reads the text once for each chunk takes four times as many.
    assert lines_to_split(part * 6_000) < 2.5 * lines_to_split(part * 3_000)


@given(text=st.text("ab \f\v\n\x1c\x85.", max_size=60))
def test_control_characters_part_no_words_of_bert(text: str) -> None:
    for chunk in chunks_of(text, 8, 2, "BERT"):
        assert chunk["tokens"] == counts([chunk["text"]], "BERT")[0]


@pytest.mark.parametrize("column", [pa.array([1]), 5, ["a"]])
def test_a_column_that_is_none_of_texts_is_refused(column: Any) -> None:
    with pytest.raises(TypeError, match="column: "):
        count_tokens(column)


def test_series_of_pandas_keep_their_index() -> None:
    pandas = pytest.importorskip("pandas")
    add_methods()
    texts = pandas.Series(["one two", None, "three"], index=[7, 5, 3], name="text")
    tokens = count_tokens(texts, "cl100k_base")
    assert tokens.to_dict() == {7: 2, 5: None, 3: 1}
    assert (tokens.name, count_tokens(texts).name) == ("count_tokens", "estimated_tokens")
    chunks = texts.pillarbox.split_text(8, tokenizer="cl100k_base")
    assert chunks.to_dict() == {7: ["one two"], 5: None, 3: ["three"]}
    assert chunks.explode().index.tolist() == [7, 5, 3]
    assert texts.pillarbox.count_tokens("cl100k_base").equals(tokens)
    with pytest.raises(TypeError, match="column: is of Arrow's type int64, must be of strings"):
        count_tokens(pandas.Series([1]))
    # As a column without any value is read from CSV.
    assert count_tokens(pandas.Series([float("nan")] * 2)).isna().tolist() == [True, True]
    with pytest.raises(TypeError, match="column: must be of texts: .*surrogates"):
        count_tokens(pandas.Series(["\ud800"], dtype=object))


def test_series_of_polars_are_columns_of_a_frame() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"text": ["one two", None]})
    made = frame.with_columns(count_tokens(frame["text"], "cl100k_base"), count_tokens(frame["text"]))
    assert made.columns == ["text", "count_tokens", "estimated_tokens"]
    assert made["count_tokens"].to_list() == [2, None]
    assert split_text(frame["text"], 8, tokenizer="cl100k_base").to_list() == [["one two"], None]
