"""Slices of nested columns of Parquet, read leaf by leaf, are what Arrow reads there in the row group."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from pillarbox.sources.connectors.parquet_leaves import merged  # noqa: E402
from pillarbox.sources.connectors.parquet_pages import (  # noqa: E402
    Fields,
    PagedFile,
    read_struct,
    struct_bytes,
)
from tests.search import examples  # noqa: E402
from tests.sources.unit.paged import check_slices, opened  # noqa: E402

ROWS, GROUP_ROWS, PAGE_ROWS = 160, 100, 7
"""Rows of a file, of its first row group, and about so many of a page."""
EPOCH = datetime(2024, 1, 1, tzinfo=timezone.utc)
HAS_LISTS_OF_ONE_LENGTH = int(pa.__version__.split(".")[0]) >= 26
"""Arrow reads lists of one length with nulls among them."""

LEAVES: dict[Any, Callable[[random.Random], Any]] = {
    pa.int64(): lambda chance: chance.randrange(50),
    pa.uint8(): lambda chance: chance.randrange(256),
    pa.bool_(): lambda chance: chance.random() < 0.5,
    pa.float32(): lambda chance: float(chance.randrange(100)),
    pa.string(): lambda chance: "".join(chance.choices(string.ascii_letters, k=chance.randrange(4))),
    pa.large_binary(): lambda chance: chance.randbytes(chance.randrange(4)),
    pa.binary(3): lambda chance: chance.randbytes(3),
    pa.dictionary(pa.int32(), pa.string()): lambda chance: chance.choice(["one", "two", "three"]),
    pa.decimal128(20, 3): lambda chance: Decimal(chance.randrange(10**6)) / 1000,
    pa.time64("us"): lambda chance: time(chance.randrange(24), chance.randrange(60)),
    pa.duration("ms"): lambda chance: timedelta(seconds=chance.randrange(1000)),
    pa.date32(): lambda chance: date(2024, 1, 1 + chance.randrange(31)),
    pa.timestamp("us", "Europe/Berlin"): lambda chance: EPOCH + timedelta(seconds=chance.randrange(10**6)),
    pa.null(): lambda chance: None,
}
KEYS = [pa.int64(), pa.string(), pa.date32()]


def groups(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Types of which `inner` gives the parts."""
    parts = st.builds(part, inner, st.booleans())
    return st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(struct),
        st.builds(pa.map_, st.sampled_from(KEYS), parts),
        parts.map(pa.list_),
        parts.map(pa.large_list),
        *([parts.map(pair)] if HAS_LISTS_OF_ONE_LENGTH else []),
    )


def part(kind: Any, nullable: bool) -> Any:
    # Arrow does not write nulls that may not be null.
    return pa.field("element", kind, nullable=nullable or pa.types.is_null(kind))


def struct(fields: list[Any]) -> Any:
    return pa.struct([field.with_name(f"f{at}") for at, field in enumerate(fields)])


def pair(field: Any) -> Any:
    return pa.list_(field, 2)


TYPES = groups(st.recursive(st.sampled_from([*LEAVES]), groups, max_leaves=6))


def value(kind: Any, chance: random.Random) -> Any:
    """A random value of a type, other than null."""
    if kind in LEAVES:
        return LEAVES[kind](chance)
    if pa.types.is_struct(kind):
        return {field.name: maybe(field, chance) for field in kind}
    if pa.types.is_map(kind):
        return [
            (value(kind.key_type, chance), maybe(kind.item_field, chance)) for _ in range(chance.randrange(4))
        ]
    count = kind.list_size if pa.types.is_fixed_size_list(kind) else chance.randrange(4)
    return [maybe(kind.value_field, chance) for _ in range(count)]


def maybe(field: Any, chance: random.Random) -> Any:
    """A random value of a field, null among others where it may be."""
    return None if field.nullable and chance.random() < 0.2 else value(field.type, chance)


def file_of(field: Any, chance: random.Random, **how: Any) -> bytes:
    """A file of one column of random values, in small pages."""
    column = pa.array([maybe(field, chance) for _ in range(ROWS)], field.type)
    written = BytesIO()
    pq.write_table(
        pa.table([column], schema=pa.schema([field])),
        written,
        row_group_size=GROUP_ROWS,
        data_page_size=1,
        write_batch_size=PAGE_ROWS,
        **how,
    )
    return written.getvalue()


WRITERS = st.fixed_dictionaries(
    {
        "use_dictionary": st.booleans(),
        # A small one is soon full, and the pages behind it refer to none.
        "dictionary_pagesize_limit": st.sampled_from([40, 2**20]),
        "compression": st.sampled_from(["none", "zstd"]),
        "store_schema": st.booleans(),
        "use_deprecated_int96_timestamps": st.booleans(),
    }
)
PAGES = st.sampled_from(
    [
        {"write_page_index": True, "data_page_version": "1.0"},
        {"write_page_index": True, "data_page_version": "2.0"},
        {"write_page_index": False, "data_page_version": "2.0"},
    ]
)


@pytest.mark.contract(
    "A slice of a nested column of Parquet is what Arrow reads there in the whole row group.",
    convicts=["leaves_not_aligned", "nulls_of_structs_lost", "slice_from_page", "last_page_for_dictionary"],
)
@settings(max_examples=examples(500))
@given(
    kind=TYPES,
    nullable=st.booleans(),
    how=WRITERS,
    pages=PAGES,
    group=st.sampled_from([0, 1]),
    batch_rows=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_slices_of_nested_columns_are_those_of_the_whole(
    kind: Any,
    nullable: bool,
    how: dict[str, Any],
    pages: dict[str, Any],
    group: int,
    batch_rows: int,
    seed: int,
) -> None:
    chance = random.Random(seed)
    rows = GROUP_ROWS if group == 0 else ROWS - GROUP_ROWS
    edges = [(start, chance.randrange(start + 1, rows + 1)) for start in chance.sample(range(rows), 4)]
    field = pa.field("a", kind, nullable=nullable or pa.types.is_null(kind))
    content = file_of(field, chance, **how, **pages)
    try:
        opened(content).read_row_group(group, use_threads=False)
    except pa.ArrowInvalid as error:
        # Arrow does not read what it has written of lists of one length below nulls.
        assume("Expected all lists to be of size" not in str(error))
        raise
    check_slices(content, group, [*edges, (0, rows)], batch_rows)


# -- schemas of other writers ----------------------------------------------------------------------


def with_schema(content: bytes, changed: Callable[[list[Fields]], list[Fields]]) -> bytes:
    """A file with another schema for the same levels and values, and without that of Arrow."""
    end = len(content) - 8
    begin = end - int.from_bytes(content[end : end + 4], "little")
    footer, _ = read_struct(content, begin)
    kind, (of, elements) = footer[2]
    footer[2] = (kind, (of, changed(elements)))
    # The keys and values, of which the schema of Arrow is one.
    footer.pop(5, None)
    written = b"".join(struct_bytes(footer))
    return content[:begin] + written + len(written).to_bytes(4, "little") + content[-4:]


def named(elements: list[Fields], name: bytes) -> Fields:
    (found,) = [element for element in elements if element[4][1] == name]
    return found


def as_two_levels(elements: list[Fields]) -> list[Fields]:
    """The repeated group of a list is its element."""
    named(elements, b"element")[3] = named(elements, b"list")[3]
    return [element for element in elements if element[4][1] != b"list"]


def as_repeated_group(elements: list[Fields]) -> list[Fields]:
    """As of Protocol Buffers: a group that is repeated, and no list around it."""
    root, whole, repeated, element, *below = elements
    element[3], element[4] = repeated[3], whole[4]
    return [root, element, *below]


def as_of_hive(elements: list[Fields]) -> list[Fields]:
    """The entries of a map are annotated, too, and have another name."""
    named(elements, b"key_value")[6] = named(elements, b"a")[6]
    named(elements, b"key_value")[4] = named(elements, b"a")[4]
    return elements


def as_of_old_writers(elements: list[Fields]) -> list[Fields]:
    """Lists and maps have the older annotation alone."""
    for element in elements:
        element.pop(10, None)
    return elements


NESTED = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int64())), ("z", pa.map_(pa.int64(), pa.int64()))])
FLAT = pa.struct([("x", pa.int64()), ("y", pa.int64())])
SCHEMAS = {
    "lists in two levels": (as_two_levels, pa.list_(pa.field("element", FLAT, nullable=False))),
    "repeated groups": (as_repeated_group, pa.list_(pa.field("element", FLAT, nullable=False))),
    "maps of Hive": (as_of_hive, pa.map_(pa.int64(), NESTED.field("x").type)),
    "older annotations": (as_of_old_writers, NESTED),
    "older annotations of maps": (as_of_old_writers, pa.map_(pa.string(), FLAT)),
}


@pytest.mark.contract(
    "Nested columns of Parquet are read in slices by the schemas of other and older writers."
)
@pytest.mark.parametrize(("changed", "kind"), SCHEMAS.values(), ids=SCHEMAS)
def test_slices_are_read_by_the_schemas_of_other_writers(
    changed: Callable[[list[Fields]], list[Fields]], kind: Any
) -> None:
    field = pa.field("a", kind, nullable=changed is not as_repeated_group)
    content = with_schema(file_of(field, random.Random(1), write_page_index=True), changed)
    check_slices(content, 0, [(0, GROUP_ROWS), (1, 2), (33, 78)], 20)


# -- what is read otherwise ------------------------------------------------------------------------


def test_what_arrow_does_not_read_leaf_by_leaf_is_left_to_it() -> None:
    class Place(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(FLAT, "pillarbox.test.place")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Place:
            return cls()

    pa.register_extension_type(Place())
    try:
        places = pa.ExtensionArray.from_storage(Place(), pa.array([{"x": 1, "y": 2}] * ROWS, FLAT))
        written = BytesIO()
        pq.write_table(pa.table({"a": places}), written, write_page_index=True)
        content = written.getvalue()
        field = opened(content).schema_arrow.field(0)
        assert field.type == Place()
        assert PagedFile(BytesIO(content), len(content)).column(field, 0, 10, 20, 5) is None
    finally:
        pa.unregister_extension_type("pillarbox.test.place")


def test_leaves_that_do_not_belong_together_are_refused() -> None:
    def alone(name: str, counts: list[int]) -> Any:
        kind = pa.list_(pa.struct([pa.field(name, pa.int64())]))
        return pa.array([[{name: 1}] * count for count in counts], kind)

    kind = pa.list_(FLAT)
    assert merged(kind, [alone("x", [1, 2]), alone("y", [1, 2])]).to_pylist() == [
        [{"x": 1, "y": 1}],
        [{"x": 1, "y": 1}] * 2,
    ]
    with pytest.raises(pa.ArrowInvalid, match=r"leaves of one column have \[2, 3\] values"):
        merged(kind, [alone("x", [1, 2]), alone("y", [1, 1])])
