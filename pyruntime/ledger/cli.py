"""The ledger's command line: `ls`, `show`, `verify`, `compact`, `expire`, `export`. For the main thread."""

# What is read here may come from anybody who can write into the folder or bucket. Names and values go to a
# terminal through `printable`, or a run that is called "\x1b]..." could write into the terminal's title or
# clipboard; values are shown as JSON, never as Python. One that cannot be read is a row that says so: who
# looks at a damaged ledger wants the rest of it.
#
# The exit status tells damage (1) from a mistake in the words (2), so that `verify` can stand in a script.

from __future__ import annotations

import argparse
import base64
import datetime
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from pillarbox.kernel import PillarboxError
from pillarbox.ledger.errors import LedgerError, LedgerValueError, LedgerWarning, printable
from pillarbox.ledger.format import schema as record_schema
from pillarbox.ledger.keys import Scope
from pillarbox.ledger.ledger import CACHE_RUN, US, Cache, Ledger
from pillarbox.ledger.local_folder import LocalFolder
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.private_files import replacing
from pillarbox.ledger.reader import LedgerReader
from pillarbox.ledger.upkeep import compact, expire_cache
from pillarbox.redaction import shown_address

ABOUT = """\
Look at a ledger, the folder or bucket in which finished calls are kept, and look after it.

LOCATION is a path or a URL: file://, s3://, hdfs://. Nothing is changed but by compact and expire.
"""
EXAMPLES = """\
examples:
  pillarbox ledger ls /data/ledger
  pillarbox ledger show /data/ledger --run nightly --limit 3
  pillarbox ledger verify s3://bucket/ledger
  pillarbox ledger expire /data/ledger --run QUERY --through 41
  pillarbox ledger expire /data/ledger --older-than 30
  pillarbox ledger export /data/ledger calls.parquet --uid embed-v1
"""
PROGRAM = "pillarbox ledger"
DAY_S = 24 * 3600


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line, from `COMMANDS`."""
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (run, about, options) in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        command.set_defaults(run_command=run)
        for option, details in {**WHICH, **options}.items():
            command.add_argument(option, **details)
    return top


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if _whole(text) == 0:
        raise argparse.ArgumentTypeError("'0': must be a whole number, 1 or more")
    return int(text)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of days, 0 or more")
    return days


def chosen(ledger: Ledger, words: argparse.Namespace) -> list[Scope]:
    """The scopes that the words mean. Raises ValueError if there are none, and says which there are."""
    scopes = list(ledger.scopes())
    found = [
        scope
        for scope in scopes
        if (words.run is None or scope.run == words.run)
        and (words.uid is None or scope.uid == words.uid)
        and (words.batch is None or scope.batch == words.batch)
    ]
    if not found and scopes:
        runs = sorted({scope.run for scope in scopes})
        uids = sorted({scope.uid for scope in scopes})
        raise ValueError(
            f"no records of run {words.run or 'any'}, operator {words.uid or 'any'}, micro-batch "
            f"{'any' if words.batch is None else words.batch}; there are the runs {', '.join(runs[:9])} "
            f"and the operators {', '.join(uids[:9])}"
        )
    if not found:
        raise ValueError(
            f"no ledger at {shown_address(ledger.location)!r}: give the location that the job's Ledger has"
        )
    return found


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns its exit status: 0 for good, 1 for damage, 2 for an error, said on stderr.

    arguments: what follows `pillarbox ledger`.
    """
    words = parser().parse_args(arguments)
    try:
        ledger = Ledger(words.location)
        scopes = chosen(ledger, words)
        with warnings.catch_warnings():
            # What is damaged is said by each command in its own way.
            warnings.simplefilter("ignore", LedgerWarning)
            status: int = words.run_command(ledger, scopes, words)
            return status
    except BrokenPipeError:
        # Whoever reads has seen enough; nothing is left to be written at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (PillarboxError, OSError, ValueError) as error:
        print(printable(f"{PROGRAM}: {error}"), file=sys.stderr)
        return 2


def _say(line: str) -> None:
    # A run, an operator, a file may be named by anybody: no terminal is to obey them.
    print(printable(line))


def _ls(ledger: Ledger, scopes: list[Scope], words: argparse.Namespace) -> int:
    lines: list[tuple[str, ...]] = [
        ("RUN", "BATCH", "OPERATOR", "CONFIG", "SEGMENTS", "RECORDS", "BYTES", "CHANGED", "")
    ]
    for scope in scopes:
        reader = ledger.reader(scope)
        segments = ledger.folder(scope).segments()
        changed = datetime.datetime.fromtimestamp(_last_change(ledger, scope), datetime.timezone.utc)
        batch = "" if scope.batch is None else str(scope.batch)
        counts = len(segments), len(reader), sum(each.size for each in segments)
        damaged = f"{len(reader.damage)} damaged" if reader.damage else ""
        names = map(printable, (scope.run, batch, scope.uid, scope.config))
        lines.append((*names, *(f"{count:,}" for count in counts), f"{changed:%Y-%m-%d %H:%M}", damaged))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        cells[4:7] = [cell.rjust(width) for cell, width in zip(line[4:7], widths[4:7], strict=True)]
        print("  ".join(cells).rstrip())
    return 0


def _last_change(ledger: Ledger, scope: Scope) -> float:
    """The time when a file with results changed last, or its folder without any: seconds since 1970."""
    folder = ledger.folder(scope)
    segments = folder.segments()
    if not segments and isinstance(folder, LocalFolder):
        # A job that has just begun has a folder, and no results yet.
        with suppress(FileNotFoundError):
            return os.stat(folder.path).st_mtime
    return max((each.changed for each in segments), default=0.0)


def _show(ledger: Ledger, scopes: list[Scope], words: argparse.Namespace) -> int:
    rows = (row for scope in scopes for row in rows_of(scope, ledger.reader(scope)))
    for shown, row in enumerate(rows):
        if shown == words.limit:
            print(f"(only the first {shown}; more with --limit)", file=sys.stderr)
            break
        line = {**row, "value": json.loads(row["value"]), "at": _moment(row["at"])}
        print(printable(json.dumps(line, ensure_ascii=False)))
    return 0


def _moment(microseconds: int) -> str | int:
    """The time that a record says, or its number if that is none that anybody has seen."""
    try:
        return datetime.datetime.fromtimestamp(microseconds / 1e6, datetime.timezone.utc).isoformat()
    except (ValueError, OverflowError, OSError):
        return microseconds


def _verify(ledger: Ledger, scopes: list[Scope], words: argparse.Namespace) -> int:
    damaged = 0
    for scope in scopes:
        reader = ledger.reader(scope)
        records = sum(rows.count for rows, _ in reader.frames())
        _say(f"{scope}: {records:,} records are whole")
        for damage in reader.damage:
            damaged += 1
            _say(f"{scope}: {damage}{' (as a kill leaves it)' if damage.is_tail else ''}")
    return 1 if damaged else 0


def _compact(ledger: Ledger, scopes: list[Scope], words: argparse.Namespace) -> int:
    for scope in scopes:
        done = compact(ledger, scope)
        if done.segments:
            _say(
                f"{scope}: {done.segments:,} segments of {done.bytes_before:,} bytes became one of "
                f"{done.bytes_after:,} bytes with {done.records:,} records"
                + (f"; {done.damaged} damaged parts left out" if done.damaged else "")
            )
        else:
            _say(f"{scope}: nothing to merge")
    return 0


def _expire(ledger: Ledger, scopes: list[Scope], words: argparse.Namespace) -> int:
    # Without a word about what, `expire LOCATION` would mean everything: that must be written out.
    if (words.through, words.older_than, words.max_bytes) == (None, None, None) and not words.all:
        raise ValueError("say what expires: --through N, --older-than DAYS, --max-bytes N or --all")
    if words.max_bytes is not None and any(scope.run != CACHE_RUN for scope in scopes):
        raise ValueError(f"--max-bytes is for caches; choose them with --run {CACHE_RUN}")
    if words.through is not None and words.run is None:
        raise ValueError("--through needs --run: each streaming query counts its own micro-batches")
    for scope in scopes:
        if scope.run == CACHE_RUN:
            _expire_cache(ledger, scope, words)
            continue
        if words.through is not None and (scope.batch is None or scope.batch > words.through):
            continue
        if words.older_than is not None:
            age = time.time() - _last_change(ledger, scope)
            if age < words.older_than * DAY_S:
                continue
        if words.dry_run:
            _say(f"{scope}: would be deleted")
            continue
        with warnings.catch_warnings(record=True) as left:
            warnings.simplefilter("always", LedgerWarning)
            _say(f"{scope}: {expire(ledger, scope):,} bytes deleted")
        for warning in left:
            _say(f"{scope}: {warning.message}")
    return 0


def _expire_cache(ledger: Ledger, scope: Scope, words: argparse.Namespace) -> None:
    """Delete whole segments of a cache, and none that a running job may ask for."""
    if words.through is not None:
        return
    age = None if words.older_than is None else max(words.older_than * DAY_S, 1e-6)
    limits = Cache(max_age=age, max_bytes=1 if words.all else words.max_bytes)
    if words.dry_run:
        segments = ledger.folder(scope).segments()
        cut = limits.cut(segments, time.time())
        old = [each for each in segments if each.changed * US < cut]
        _say(f"{scope}: {len(old):,} segments, {sum(each.size for each in old):,} bytes would be deleted")
        return
    gone = expire_cache(ledger, scope, limits)
    more = f"; {gone.in_use_by} jobs may ask for more, and keep it" if gone.in_use_by else ""
    _say(f"{scope}: {gone.segments:,} segments, {gone.bytes:,} bytes deleted{more}")


def _export(ledger: Ledger, scopes: list[Scope], words: argparse.Namespace) -> int:
    _say(f"{export(ledger, scopes, words.target):,} records in {words.target}")
    return 0


ROW_GROUP_RECORDS = 4096
"""Records of a row group."""


def readable(value: object) -> Any:
    """`value` in plain JSON: what JSON has not becomes a text, bytes become base64."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        return readable(value.tolist())
    return str(value)


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate cannot be UTF-8; escaped, it can.
        return json.dumps(value)
    return text


def rows_of(scope: Scope, reader: LedgerReader) -> Iterator[dict[str, Any]]:
    """The records of a scope, a dict each; a value that cannot be read is said to be so."""
    about = {"run": scope.run, "batch": scope.batch, "uid": scope.uid, "config": scope.config}
    for rows, row in ((rows, row) for rows, places in reader.frames() for row in places):
        try:
            text = _json(readable(rows.record(row).value))
        except (LedgerValueError, ValueError) as error:
            # The latter of a number with more digits than Python turns into text.
            text = _json({"unreadable": str(error)})
        plain = {name: rows.batch[name][row].as_py() for name in ("kind", "attempts", "latency", "cost")}
        # Not by `as_py`: a forged time may be one that no datetime can have.
        yield {**about, "key": rows.key(row).hex(), **plain, "value": text, "at": rows.at(row)}


def export(ledger: Ledger, scopes: Iterable[Scope], target: str) -> int:
    """Write what scopes have into a file of Parquet; returns the number of records.

    target: a path that ends with `.parquet`. The file appears when it is complete.
    Raises ValueError for another ending, LedgerError if the file cannot be written.
    """
    if not target.endswith(".parquet"):
        raise ValueError(f"target={target!r}: must end with .parquet; `show` writes lines of JSON")
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = dict.fromkeys(("run", "uid", "config", "key", "kind", "value"), pa.string())
    numbers = {name: record_schema().field(name).type for name in ("attempts", "latency", "cost", "at")}
    schema = pa.schema({**texts, "batch": pa.int64(), **numbers})
    rows = (row for scope in scopes for row in rows_of(scope, ledger.reader(scope)))
    count = 0
    try:
        with replacing(target) as file, pq.ParquetWriter(file, schema) as parquet:
            while group := list(islice(rows, ROW_GROUP_RECORDS)):
                parquet.write_table(pa.Table.from_pylist(group, schema=schema))
                count += len(group)
    except OSError as error:
        raise LedgerError(f"{target} cannot be written: {error}") from error
    return count


Run = Callable[[Ledger, list[Scope], argparse.Namespace], int]
WHICH: dict[str, dict[str, Any]] = {
    "location": {"metavar": "LOCATION", "help": "where the ledger is"},
    "--run": {"help": "only this run: its name, or the id of the streaming query"},
    "--uid": {"help": "only this operator"},
    "--batch": {"type": _whole, "metavar": "N", "help": "only this micro-batch"},
}
"""The arguments of every command."""
COMMANDS: dict[str, tuple[Run, str, dict[str, dict[str, Any]]]] = {
    "ls": (_ls, "runs, operators, their records and bytes", {}),
    "show": (
        _show,
        "records, one a line, as JSON",
        {
            "--limit": {
                "type": _whole,
                "default": 10,
                "metavar": "N",
                "help": "records, at most (default 10)",
            }
        },
    ),
    "verify": (_verify, "check every checksum; exits with 1 if one is wrong", {}),
    "compact": (_compact, "merge the segments that nobody writes any more", {}),
    "expire": (
        _expire,
        "delete what nobody will ask for again",
        {
            "--through": {"type": _whole, "metavar": "N", "help": "micro-batches up to this one"},
            "--older-than": {"type": _days, "metavar": "DAYS", "help": "what has not changed for so long"},
            "--max-bytes": {"type": _positive, "metavar": "N", "help": "of a cache all but so much"},
            "--all": {"action": "store_true", "help": "all that --run, --uid and --batch choose"},
            "--dry-run": {"action": "store_true", "help": "only say what would be deleted"},
        },
    ),
    "export": (
        _export,
        "write records to a file of Parquet",
        {"target": {"metavar": "FILE", "help": "ends with .parquet"}},
    ),
}
"""The function of each command, a line about it, and the arguments that it has besides."""
