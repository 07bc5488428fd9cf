"""Between the Arrow schema of a source and Spark's. On the driver and in tasks; pure.

Spark wants what a data source gives in exactly the Arrow types that it has for a schema itself.
"""

from __future__ import annotations

import base64
import inspect
import zlib

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


def spark_schema(arrow: pa.Schema) -> StructType:
    """Spark's schema for what a source gives.

    A timestamp without a time zone is `timestamp_ntz`; unsigned numbers become the next larger type. Raises
    TypeError that names the column, for a type that Spark does not have.
    """
    if not isinstance(arrow, pa.Schema):
        raise TypeError(f"arrow_schema() gave {arrow!r}: must be a pyarrow.Schema")
    fields = []
    for field in arrow:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        try:
            spark = from_arrow_type(_UNSIGNED.get(kind, kind), prefer_timestamp_ntz=True)
        except Exception as error:
            raise TypeError(f"column {field.name!r}: Spark has no type for {field.type}: {error}") from None
        fields.append(StructField(field.name, spark, field.nullable))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark wants the rows of `schema`."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def schema_to_text(schema: pa.Schema) -> str:
    """A schema as text, short enough for a message of the channel."""
    return base64.b64encode(zlib.compress(schema.serialize().to_pybytes())).decode()


def schema_from_text(text: str) -> pa.Schema:
    """What `schema_to_text` has made."""
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(text))))
