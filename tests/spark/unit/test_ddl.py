"""Types from DDL without a session: those that Spark's own parser gives."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pillarbox.spark import ddl
from pillarbox.spark.compat import TIME_TYPES, parse_ddl

SIMPLE = [
    *(
        T.BooleanType(),
        T.ByteType(),
        T.ShortType(),
        T.IntegerType(),
        T.LongType(),
        T.FloatType(),
        T.DoubleType(),
    ),
    *(T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(), T.TimestampNTZType(), T.NullType()),
    *(T.DecimalType(), T.DecimalType(38, 18), T.DayTimeIntervalType()),
    *(kind() for kind in TIME_TYPES),
]
NAMES = st.text("abcxyz_019", min_size=1).filter(lambda name: not name.isdecimal())
TYPES = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: st.one_of(
        inner.map(T.ArrayType),
        st.tuples(inner, inner).map(lambda pair: T.MapType(*pair)),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
            lambda fields: T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
        ),
    ),
    max_leaves=8,
)


@pytest.mark.contract("Without a session a type in DDL is the type that it names.")
@given(TYPES)
def test_a_type_is_what_its_words_say(kind: T.DataType) -> None:
    assert ddl.parsed(kind.simpleString()) == kind
    assert ddl.parsed(f"c {kind.simpleString()}") == T.StructType([T.StructField("c", kind)])


TEXTS = [
    *("int", "INTEGER", "byte", "tinyint", "smallint", "short", "bigint", "long", "real", "float", "double"),
    *("decimal", "dec(5)", "numeric(5, 2)", "string", "binary", "boolean", "date", "timestamp", "void"),
    *("timestamp_ntz", "timestamp_ltz", "interval day to second"),
    *("a int", "a: int, b: string", "`a b` int NOT NULL, c array<int>", "a int comment 'words', b long"),
    *("x struct<y: map<string, array<decimal(3,1)>>, z: int>", "struct<a:int,b:struct<c:int not null>>"),
    *("array<array<struct<a int>>>", "a``", "", "a int,", "a int b", "array<int", "array int", "map<int>"),
    *("nonsense", "a nonsense", "a int, a", "decimal(x)", "struct<>", "a int not", "int)", "a int comment 3"),
]


@pytest.mark.spark
@pytest.mark.contract(
    "Without a session a DDL means what it means to Spark, or is refused where Spark refuses it."
)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_means_what_it_means_to_spark(spark: SparkSession, text: str) -> None:
    try:
        expected = parse_ddl(text)
    except Exception:
        with pytest.raises(ValueError, match="expected|is not a type|unexpected|too early|deep"):
            ddl.parsed(text)
        return
    assert ddl.parsed(text) == expected


@pytest.mark.parametrize(
    "text", ["array<" * 1000, "a " + "struct<b:" * 200 + "int" + ">" * 200, "'" * 100, "\0"]
)
def test_texts_that_are_not_ddl_are_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="expected|is not a type|unexpected|too early|deep"):
        ddl.parsed(text)
