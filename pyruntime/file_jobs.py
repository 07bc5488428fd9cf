"""The commands `pillarbox embed` and `pillarbox ask`: columns of services beside those of a file.

Without Spark a file is read in pieces, which go through `pillarbox.frames` one after the other, with one bar
and one budget; with `--spark` it is one job of Spark. The result takes its name when it is whole. For the
main thread.
"""

# Why a ledger of these commands is a cache. A user who runs the command again after an interruption, with
# more rows, or with another column in the file wants to pay for what is new. Records are found by the texts
# that are sent and by the client's configuration: another model, or another prompt, has its own.

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pillarbox.aio.options import Budget, Errors, Options
from pillarbox.aio.retry import Retry
from pillarbox.kernel import PillarboxError
from pillarbox.ledger import Ledger
from pillarbox.ledger.errors import printable
from pillarbox.ledger.private_files import replacing
from pillarbox.providers import LOCAL_COORDINATOR, provided

COMPLETE, INCOMPLETE, FAILED, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses: each row has its result; rows lack one; an error; Ctrl-C."""
PIECE_ROWS = 50_000
"""Rows that are in memory at once with their results; of CSV and JSON the other rows are there too."""
PIECE_BYTES = 256 * 2**20
"""Bytes of such rows, where a file says how many it has: those with images are few."""
ROW_BYTES = 64 * 2**20
"""Bytes of a row of CSV or JSON, at most."""
ATTEMPTS = 5
UID = "pillarbox command"
LINES = (".jsonl", ".ndjson", ".json")
"""Ends of the names of files with a JSON object on each line."""
CHATS = ("anthropic", "gemini", "ollama", "openai", "vllm")
EMBEDDINGS = ("ollama", "openai", "vllm")
"""Presets that need no address of the user's."""
EXAMPLES = """\
examples:
  pillarbox embed in.parquet out.parquet --column text --client openai:text-embedding-3-small \\
      --ledger kept --max-cost 5 --prices prices.json
  pillarbox embed in.csv out.parquet --column text --client http://localhost:8000/v1#e5-passage
  pillarbox ask in.jsonl out.jsonl --prompt 'Good or bad: {text}' --into verdict --client ollama:qwen3
  pillarbox ask in.csv out.parquet --prompt 'Invoice: {text}' --schema invoice.json --client gemini:MODEL

exit status: 0 if each row has its result, 1 if rows lack one (column `_error` says why), 2 for an error, 130
for Ctrl-C. With --ledger the same command continues where it ended.
"""


class Counts(NamedTuple):
    """Rows of a job, and those that failed or were not called."""

    rows: int = 0
    failed: int = 0
    not_called: int = 0


def main(command: str, arguments: Sequence[str]) -> int:
    """Run `pillarbox embed` or `pillarbox ask` and return its exit status.

    arguments: what follows the name of the command.
    """
    words = _parser(command).parse_args(arguments)
    name = f"pillarbox {command}"
    try:
        counts = (_run_in_spark if words.spark else _run)(command, words)
    except KeyboardInterrupt:
        again = "run it again to continue" if words.ledger else "--ledger FOLDER keeps what is paid for"
        print(f"{name}: interrupted; {again}", file=sys.stderr)
        return INTERRUPTED
    except (PillarboxError, OSError, ValueError, TypeError, ImportError) as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        return FAILED
    left = counts.failed + counts.not_called
    if left:
        again = " Run the command again to call these." if words.ledger else ""
        print(
            f"{name}: not complete: of {counts.rows:,} rows {counts.failed:,} failed, "
            f"{counts.not_called:,} were not called; column _error says why.{again}",
            file=sys.stderr,
        )
    return INCOMPLETE if left else COMPLETE


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"pillarbox {command}",
        description="Add a column of vectors to a file."
        if command == "embed"
        else "Ask a model about each row.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", type=Path, help="a file: .parquet, .csv, .jsonl")
    parser.add_argument("output", type=Path, help="the file to write, or the folder with --spark")
    parser.add_argument("--client", required=True, metavar="CLIENT", help="PRESET:MODEL, or URL#MODEL")
    if command == "embed":
        parser.add_argument("--column", required=True, help="the column of texts")
        parser.add_argument("--into", default="vector", help="the column of vectors (vector)")
    else:
        parser.add_argument("--prompt", required=True, help="the question, with columns in braces")
        parser.add_argument("--image", nargs="+", metavar="COLUMN", help="columns of images and PDFs")
        parser.add_argument("--into", help="the column of the answer; without it one for each of its fields")
        parser.add_argument("--schema", type=Path, help="a file with the JSON schema of the answer")
    parser.add_argument("--key", metavar="VARIABLE", help="the environment variable with the key")
    parser.add_argument("--keep", nargs="*", metavar="COLUMN", help="columns to keep; all by default")
    parser.add_argument("--ledger", type=Path, metavar="FOLDER", help="keep what is paid for here")
    parser.add_argument("--max-cost", type=float, help="the most to pay, in the currency of --prices")
    parser.add_argument("--max-calls", type=int, help="the most calls to make")
    parser.add_argument("--prices", metavar="FILE", help="prices in LiteLLM's form; or `stated`, by a proxy")
    parser.add_argument("--capacity", type=int, default=64, help="calls in flight (64)")
    parser.add_argument("--spark", action="store_true", help="read, call and write by Spark")
    return parser


# -- what is called --------------------------------------------------------------------------------


def _client(kind: Any, presets: Sequence[str], spec: str, options: dict[str, Any]) -> Any:
    """The client of `PRESET:MODEL` or `URL#MODEL`. Raises ValueError."""
    if spec.startswith(("http://", "https://")):
        url, _, model = spec.rpartition("#")
        if not url or not model:
            raise ValueError(f"--client {spec}: the model is missing, as in http://localhost:8000/v1#MODEL")
        return kind.vllm(model, base_url=url, **options)
    preset, _, model = spec.partition(":")
    if not model or preset not in presets:
        raise ValueError(
            f"--client {spec}: must be PRESET:MODEL with one of {', '.join(presets)}, or URL#MODEL"
        )
    return getattr(kind, preset)(model, **options)


def _column_of(command: str, words: argparse.Namespace) -> Callable[..., Any]:
    """The function that adds the columns to a table or a DataFrame."""
    from pillarbox.clients import Chat, Embeddings, Price, Secret
    from pillarbox.spark.client_columns import ask, embed_text

    keep = "*" if words.keep is None else words.keep
    known: dict[str, Any] = {"prices": Price.STATED if words.prices == "stated" else words.prices}
    if words.key is not None:
        known["key"] = Secret.env(words.key)
    if command == "embed":
        model = _client(Embeddings, EMBEDDINGS, words.client, known)
        return lambda table, **more: embed_text(
            table, words.column, into=words.into, client=model, keep=keep, **more
        )
    answer = None
    if words.schema is not None:
        with _named(words.schema):
            answer = json.loads(words.schema.read_text("utf-8"))
    into = words.into or ("answer" if answer is None else None)
    asked = {"prompt": words.prompt, "images": words.image, "answer": answer}
    chat = _client(Chat, CHATS, words.client, {**asked, **known})
    return lambda table, **more: ask(table, client=chat, into=into, keep=keep, **more)


def _options(words: argparse.Namespace, **more: Any) -> Options:
    return Options(
        capacity=words.capacity,
        retry=Retry(ATTEMPTS),
        errors=Errors("column"),
        budget=Budget(max_calls=words.max_calls, max_cost=words.max_cost),
        ledger=None if words.ledger is None else Ledger(words.ledger, uid=UID, cache=True),
        **more,
    )


# -- files -----------------------------------------------------------------------------------------


def _pieces(path: Path) -> tuple[int, Iterable[Any]]:
    """The number of rows of a file, and tables of them. Raises OSError, ValueError."""
    import pyarrow as pa

    kind = path.suffix.lower()
    if kind == ".parquet":
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        about = file.metadata
        nbytes = sum(about.row_group(place).total_byte_size for place in range(about.num_row_groups))
        rows = min(PIECE_ROWS, max(1, PIECE_BYTES * about.num_rows // max(1, nbytes)))
        batches = file.iter_batches(rows)
        return about.num_rows, (pa.Table.from_batches([batch]) for batch in batches)
    if kind == ".csv":
        table = _texts_of_csv(path)
    elif kind in LINES:
        table = _rows_of_lines(path)
    else:
        raise ValueError(f"{path}: must end with .parquet, .csv or .jsonl")
    return table.num_rows, (
        table.slice(at, PIECE_ROWS) for at in range(0, max(1, table.num_rows), PIECE_ROWS)
    )


def _texts_of_csv(path: Path) -> Any:
    """The table of a file of CSV, all texts, as a cell of digits may be a postcode; empty cells are null."""
    import pyarrow as pa
    from pyarrow import csv

    with _named(path):
        read, parsed = csv.ReadOptions(block_size=ROW_BYTES), csv.ParseOptions(newlines_in_values=True)
        with csv.open_csv(path, read, parsed) as reader:
            names = reader.schema.names
        texts = csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return csv.read_csv(path, read, parsed, texts)


def _rows_of_lines(path: Path) -> Any:
    """The table of a file of JSON lines, whose texts stay texts where they look like times."""
    from pyarrow import json as lines

    read = lines.ReadOptions(block_size=ROW_BYTES)
    with _named(path):
        table = lines.read_json(path, read_options=read)
        schema = _without_times(table.schema)
        if schema == table.schema:
            return table
        return lines.read_json(path, read_options=read, parse_options=lines.ParseOptions(schema))


def _without_times(schema: Any) -> Any:
    """The schema with texts in place of times, which a file of JSON has none of."""
    import pyarrow as pa

    def plain(kind: Any) -> Any:
        if pa.types.is_timestamp(kind):
            return pa.string()
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(plain(field.type)) for field in kind])
        return pa.list_(plain(kind.value_type)) if pa.types.is_list(kind) else kind

    return pa.schema([field.with_type(plain(field.type)) for field in schema])


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in what a reader raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Callable[[Any], None]]:
    """Give what writes tables one after the other; the file takes its name at the end of the block."""
    kind = path.suffix.lower()
    # What is written has columns that CSV has no form for.
    if kind not in (".parquet", *LINES):
        raise ValueError(f"{path}: must end with .parquet or .jsonl")
    with replacing(str(path), 0o666 & ~_umask()) as file, contextlib.ExitStack() as stack:
        yield _writer(stack, file, kind)
        # The footer, before the file takes its name.
        stack.close()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _writer(stack: contextlib.ExitStack, file: BinaryIO, kind: str) -> Callable[[Any], None]:
    writers: list[Any] = []

    def write_parquet(table: Any) -> None:
        from pyarrow import parquet

        if not writers:
            writers.append(stack.enter_context(parquet.ParquetWriter(file, table.schema)))
        writers[0].write_table(table)

    def write_lines(table: Any) -> None:
        file.writelines(map(_line, table.to_pylist()))

    return write_parquet if kind == ".parquet" else write_lines


def _line(row: dict[str, Any]) -> bytes:
    """A row as a line of JSON: times in ISO's form, null for a number that is none or has no end."""
    try:
        text = json.dumps(row, ensure_ascii=False, default=_text_of, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(row), ensure_ascii=False, default=_text_of)
    return text.encode() + b"\n"


def _text_of(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_finite, value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_writable(table: Any, words: argparse.Namespace) -> None:
    """Raise ValueError for bytes that are to be kept in lines of JSON."""
    from pyspark.sql import types as T

    from pillarbox.spark.local_frame import spark_field
    from pillarbox.spark.schema import holds

    if words.output.suffix.lower() not in LINES:
        return
    for field in table.schema:
        is_kept = words.keep is None or field.name in words.keep
        if is_kept and holds(spark_field(field).dataType, T.BinaryType):
            raise ValueError(
                f"{words.output}: column {field.name!r} has bytes, for which JSON has no form: leave it out, "
                "as by --keep NAME of the others, or let the output end with .parquet"
            )


# -- jobs ------------------------------------------------------------------------------------------


def _run(command: str, words: argparse.Namespace) -> Counts:
    from pillarbox.spark.progress import Progress

    if words.input.resolve() == words.output.resolve():
        raise ValueError(f"{words.output}: is the input; give the result another name")
    if words.output.is_dir():
        raise ValueError(f"{words.output}: is a folder; give the result another name")
    add = _column_of(command, words)
    rows, pieces = _pieces(words.input)
    limits = None
    if words.max_calls is not None or words.max_cost is not None:
        # One for all pieces.
        limits = provided(LOCAL_COORDINATOR, "--max-cost")().named()
    options = _options(words, limits=limits)
    counts = Counts()
    with Progress(rows, label=command) as progress, _written(words.output) as write:
        for piece in pieces:
            _check_writable(piece, words)
            made = add(piece, options=options, progress=progress)
            counts = _counted(counts, made.column("_error").combine_chunks())
            write(made)
    return counts


def _counted(counts: Counts, errors: Any) -> Counts:
    import pyarrow.compute as pc

    kinds = pc.struct_field(errors, "type").drop_null()
    not_called = pc.sum(pc.equal(kinds, "NotCalled")).as_py() or 0
    return Counts(
        counts.rows + len(errors), counts.failed + len(kinds) - not_called, counts.not_called + not_called
    )


def _run_in_spark(command: str, words: argparse.Namespace) -> Counts:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from pillarbox.spark.progress import Progress

    add = _column_of(command, words)
    spark = SparkSession.builder.appName(f"pillarbox {command}").getOrCreate()
    kind = words.input.suffix.lower().removeprefix(".")
    # As without Spark: what stands in quotes may have lines and doubled quotes.
    reader = spark.read.options(header=True, multiLine=kind == "csv", escape='"')
    rows = reader.format("json" if kind in ("jsonl", "ndjson") else kind).load(str(words.input))
    with Progress(label=command) as progress:
        made = add(rows, options=_options(words), progress=progress)
        made.write.mode("errorifexists").parquet(str(words.output))
    kept = spark.read.parquet(str(words.output))
    found = kept.groupBy(F.col("_error.type").alias("kind")).count().collect()
    by_kind = {row["kind"]: row["count"] for row in found}
    total, whole = sum(by_kind.values()), by_kind.get(None, 0)
    not_called = by_kind.get("NotCalled", 0)
    return Counts(total, total - whole - not_called, not_called)
