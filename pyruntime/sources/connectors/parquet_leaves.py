"""Columns of Arrow whose leaves are read one by one: the type of each leaf, and the column made of them.

For `PagedFile`, on whichever thread reads the file. Nothing here is shared between readings.
"""

# Parquet stores a column of maps, or of structs of several fields, as one sequence of pages for each leaf. A
# leaf is read with the path to it and without its siblings: a struct has one field then, a map is a list of
# its keys or of its values. Each of these arrays has the whole shape of its path, nulls and lengths of lists
# included, so the first leaf below a struct or a list says its shape, and of the others only what is in them
# is taken.

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return what remains of a type where one leaf of a column is read alone, for each leaf.

    The type itself for one that is not taken apart.
    """
    is_kind = pa.types
    if is_kind.is_struct(kind) and kind.num_fields:
        return [pa.struct([each]) for at in range(kind.num_fields) for each in _leaf_fields(kind.field(at))]
    if is_kind.is_map(kind):
        return [pa.list_(each) for field in (kind.key_field, kind.item_field) for each in _leaf_fields(field)]
    if is_kind.is_list(kind):
        return [pa.list_(each) for each in _leaf_fields(kind.value_field)]
    if is_kind.is_large_list(kind):
        return [pa.large_list(each) for each in _leaf_fields(kind.value_field)]
    if is_kind.is_fixed_size_list(kind):
        return [pa.list_(each, kind.list_size) for each in _leaf_fields(kind.value_field)]
    return [kind]


def _leaf_fields(field: pa.Field) -> list[pa.Field]:
    return [field.with_type(each) for each in leaf_types(field.type)]


def merged(kind: pa.DataType, leaves: Sequence[pa.Array]) -> pa.Array:
    """Return the array of type `kind` whose leaves were read alone, all of its rows each.

    Raises ArrowInvalid where these do not have the same shape.
    """
    if len(leaves) == 1:
        return leaves[0]
    # These are slices of arrays that begin at different rows. Copies begin at row 0, with the first list's
    # values.
    return _merged(kind, [pa.concat_arrays([leaf]) for leaf in leaves])


def _merged(kind: pa.DataType, leaves: Sequence[pa.Array]) -> pa.Array:
    """The same for arrays without an offset."""
    if len(leaves) == 1:
        return leaves[0]
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _with_children(kind, leaves[0], _merged_fields(fields, [leaf.field(0) for leaf in leaves]))
    below = [leaf.values for leaf in leaves]
    if pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        entries = pa.StructArray.from_arrays(_merged_fields(fields, below), fields=fields)
        return _with_children(kind, leaves[0], [entries])
    return _with_children(kind, leaves[0], [_merged(kind.value_type, below)])


def _merged_fields(fields: Sequence[pa.Field], leaves: Sequence[pa.Array]) -> list[pa.Array]:
    """One array for each of these fields of a struct or a map."""
    if len({len(leaf) for leaf in leaves}) > 1:
        raise pa.ArrowInvalid(f"leaves of one column have {sorted({*map(len, leaves)})} values")
    found = []
    begin = 0
    for field in fields:
        end = begin + len(leaf_types(field.type))
        found.append(_merged(field.type, leaves[begin:end]))
        begin = end
    return found


def _with_children(kind: pa.DataType, shape: pa.Array, children: list[pa.Array]) -> pa.Array:
    """The array of these children that has the nulls and the lengths of lists of `shape`."""
    own = shape.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(shape), own, shape.null_count, 0, children)
