"""CSV as in RFC 4180. See `FileFormat` for who calls it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.formats import check_columns, conform
from pillarbox.sources.connectors.files.lines import after_lines
from pillarbox.sources.connectors.files.listing import UnfitFileError
from pillarbox.sources.connectors.files.text import BOM, TextFormat

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CsvFormat(TextFormat):
    """Values between delimiters, in quotes where they hold a delimiter, a quote (written twice) or a newline.

    header: whether the first line of each file names its columns. delimiter, quote_char: one ASCII character
    each; no quotes with "". newlines_in_values: whether a value in quotes may hold a newline. Then each file
    is one part.
    """

    header: bool = True
    delimiter: str = ","
    quote_char: str = '"'
    newlines_in_values: bool = False
    names: tuple[str, ...] | None = None
    """The columns in their order where no header says it."""

    def __post_init__(self) -> None:
        if not (len(self.delimiter) == 1 and self.delimiter.isascii() and self.delimiter not in "\r\n"):
            raise ValueError(f"delimiter={self.delimiter!r}: must be one ASCII character, and no newline")
        quote = self.quote_char
        if quote and not (len(quote) == 1 and quote.isascii() and quote not in "\r\n" + self.delimiter):
            raise ValueError(
                f'quote={quote!r}: must be one ASCII character, neither the delimiter nor a newline, or ""'
            )
        if self.newlines_in_values and not quote:
            raise ValueError('newlines_in_values=True: needs a quote, and quote=""')

    def in_folders(self, names: Collection[str]) -> CsvFormat:
        """Where no header says it, those columns are not in the file."""
        if self.names is None or not names:
            return self
        return replace(self, names=tuple(name for name in self.names if name not in names))

    @property
    def quote(self) -> bytes | None:
        """The quote, where newlines within quotes end no line."""
        return self.quote_char.encode() if self.newlines_in_values else None

    def front(self, head: bytes) -> tuple[int, Any]:
        """The header, and the columns that it names, or that were given, or that are numbered."""
        begin = len(BOM) if head.startswith(BOM) else 0
        # Arrow passes lines over that are empty, but not in front of all others.
        begin += len(head[begin:]) - len(head[begin:].lstrip(b"\r\n"))
        if not head[begin:]:
            return begin, self.names or ()
        if not self.header:
            return begin, self.names or tuple(f"f{at}" for at in range(len(self._names(head[begin:]))))
        behind = begin + _first_line(head[begin:], self.quote_char.encode(), self.newlines_in_values)
        line = head[begin:behind]
        self.check_block(line)
        names = self._names(line)
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UnfitFileError(
                f"the header names {sorted(twice)!r} more than once: it must name each column once"
            )
        return behind, names

    def check_block(self, block: bytes) -> None:
        """Raise ValueError where a quote is open at the end: its line was cut."""
        if self.quote_char and block.count(self.quote_char.encode()) % 2:
            raise UnfitFileError(
                "a quote is open at the end of a line. If values hold newlines, newlines_in_values=True "
                'reads each file in one piece; if quotes mean nothing, say quote=""'
            )

    def parse(self, block: bytes, said: Any, wanted: pa.Schema) -> pa.RecordBatch:
        """The rows; only the columns that are wanted are converted."""
        import pyarrow as pa

        check_columns(said, wanted)
        try:
            return self._parse(block, said, wanted)
        except pa.ArrowInvalid as error:
            if "zone offset" not in str(error):
                raise
        # A time without an offset, for a column that has a zone, is UTC.
        naive = pa.schema(
            pa.field(field.name, pa.timestamp(field.type.unit))
            if pa.types.is_timestamp(field.type) and field.type.tz
            else field
            for field in wanted
        )
        return conform(self._parse(block, said, naive), wanted)

    def schema_of(self, head: bytes) -> pa.Schema:
        """The columns and their types as Arrow infers them."""
        behind, names = self.front(head)
        if not head[behind:]:
            import pyarrow as pa

            return pa.schema([(name, pa.null()) for name in names])
        self.check_block(head)
        return self._read(head[behind:], names).schema

    def _parse(self, block: bytes, names: tuple[str, ...], wanted: pa.Schema) -> pa.RecordBatch:
        return one_batch(self._read(block, names, wanted), wanted)

    def _read(self, block: bytes, names: tuple[str, ...], wanted: pa.Schema | None = None) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        convert = csv.ConvertOptions()
        if wanted is not None:
            convert = csv.ConvertOptions(
                column_types=wanted, include_columns=wanted.names, include_missing_columns=True
            )
        return csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=list(names)
            ),
            parse_options=self._options(),
            convert_options=convert,
        )

    def _names(self, line: bytes) -> tuple[str, ...]:
        import pyarrow as pa
        from pyarrow import csv

        # Arrow takes a first line without an end for an empty file.
        options = csv.ReadOptions(use_threads=False, block_size=len(line) + 2)
        found = csv.read_csv(
            pa.BufferReader(line + b"\n"), read_options=options, parse_options=self._options()
        )
        return tuple(found.column_names)

    def _options(self) -> Any:
        from pyarrow import csv

        return csv.ParseOptions(
            delimiter=self.delimiter, quote_char=self.quote_char or False, newlines_in_values=True
        )


def _first_line(head: bytes, quote: bytes, newlines_in_values: bool) -> int:
    """Bytes of the first line, which may end with a newline or a carriage return or both."""
    line = head[: after_lines(head, 1, quote if newlines_in_values else None)[1]]
    at = line.find(b"\r")
    while at >= 0:
        if not quote or line.count(quote, 0, at) % 2 == 0:
            return at + 1 + (line[at + 1 : at + 2] == b"\n")
        at = line.find(b"\r", at + 1)
    return len(line)


def one_batch(table: pa.Table, wanted: pa.Schema) -> pa.RecordBatch:
    """A table that was read from one block as one batch with the columns `wanted`."""
    import pyarrow as pa

    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in wanted], schema=wanted)
    return conform(batches[0], wanted)
