"""The state of async operators in the snapshot of their task, and such snapshots as bytes. For any thread.

A snapshot is references and numbers, taken on the mailbox thread; nobody changes a row or a result
afterwards. Bytes are made of it elsewhere, while the task goes on.
"""

# Alternatives of bytes, and why they are worse.
#
# To read any pickle: that calls whatever stands in it, and the folder may be in a shared place. So the reader
# has a list of what may be named, as Python's documentation of `pickle` shows, and what is not in it is
# refused where it is written already.
#
# A form of values without classes, as a ledger has one: each field of each state must be taken out and put in
# again by hand, and one that is forgotten is lost.
#
# To make the bytes on the mailbox thread: no call begins meanwhile, and a row is emitted late.

from __future__ import annotations

import datetime
import decimal
import io
import pickle
import struct
import types
import uuid
import zlib
import zoneinfo
from collections.abc import Collection
from typing import Any

from pillarbox.aio.calls import Call, call_state_from
from pillarbox.aio.chained import ChainedRow, chained_call, chained_row, record_of
from pillarbox.aio.errors import ErrorInfo, Failed, said
from pillarbox.aio.policies.errors import FailureCounts
from pillarbox.aio.states import AsyncWaitState, FinishedRow, OutputState, SchedulerState
from pillarbox.kernel import PillarboxError
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, OperatorSnapshot, TaskSnapshot
from pillarbox.task.protocols import Idleness, RowBatch, Watermark

# -- bytes ---------------------------------------------------------------------------------------------

VERSION = 4
"""The format of the bytes; another one is refused."""

_HEAD = struct.Struct("<16sII")
"""The magic, the version, and the CRC-32 of the pickle behind it."""
_MAGIC = b"pillarbox task\n\0"
_PROTOCOL = 5


class SnapshotError(PillarboxError):
    """The snapshot of a task cannot be written or read; the text says why."""


def _call_of(row: Any, held: int) -> Call:
    return chained_call(Call, row, held) if type(row) is ChainedRow else Call(row, held)


def _batch_of(rows: list[Any], row_bytes: int | None, held_bytes: int) -> RowBatch:
    return RowBatch(rows, row_bytes, held_bytes=held_bytes)


_STATES = (
    *(TaskSnapshot, OperatorSnapshot, CheckpointBarrier, CheckpointOptions, AsyncWaitState, OutputState),
    *(SchedulerState, FailureCounts, ErrorInfo, Failed, FinishedRow, Watermark, Idleness),
    *(ChainedRow, call_state_from, record_of, _call_of, _batch_of),
)
_VALUES = (
    *(complex, datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, uuid.UUID, zoneinfo.ZoneInfo),
)


class SnapshotCodec:
    """Makes bytes of the snapshots of a task, and snapshots of bytes. Any thread.

    allowed: classes of rows, results and states, and functions that their pickles name, which may be in one
    beside Python's own types, dates, decimals and UUIDs. Nothing else is written, read, imported or called.
    """

    def __init__(self, allowed: Collection[Any] = ()) -> None:
        self._allowed = {
            (each.__module__, each.__qualname__): each for each in (*_STATES, *_VALUES, *allowed)
        }

    def encode(self, snapshot: TaskSnapshot) -> bytes:
        """The bytes of a snapshot. Raises SnapshotError for rows, results and states that it cannot hold."""
        file = io.BytesIO()
        try:
            _Pickler(file, self._allowed).dump(snapshot)
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"the snapshot cannot be written: {said(error)}") from error
        data = file.getvalue()
        return _HEAD.pack(_MAGIC, VERSION, zlib.crc32(data)) + data

    def decode(self, data: bytes) -> TaskSnapshot:
        """The snapshot of bytes. Raises SnapshotError for other versions, damage, and what is not allowed."""
        if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
            raise SnapshotError("it is not the snapshot of a task")
        _, version, crc = _HEAD.unpack_from(data)
        if version != VERSION:
            raise SnapshotError(
                f"the snapshot has version {version}, and this Pillarbox knows version {VERSION} only: use "
                "that of the Pillarbox which has written it"
            )
        body = data[_HEAD.size :]
        if zlib.crc32(body) != crc:
            raise SnapshotError("the snapshot is damaged: its checksum is another")
        try:
            snapshot: TaskSnapshot = _Unpickler(io.BytesIO(body), self._allowed).load()
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"the snapshot cannot be read: {said(error)}") from error
        return snapshot


def _refuse(module: str, name: str) -> SnapshotError:
    return SnapshotError(
        f"{module}.{name} has no place in a snapshot: give it to SnapshotCodec in allowed=, if it is known "
        "to do no harm, or let rows, results and states be of Python's own types"
    )


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, allowed: dict[tuple[str, str], Any]) -> None:
        super().__init__(file, _PROTOCOL)
        self._allowed = allowed

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            name = (value.__module__, value.__qualname__)
            if self._allowed.get(name) is not value:
                raise _refuse(*name)
        elif isinstance(value, Call):
            return _call_of, (chained_row(value) if hasattr(value, "source") else value.row, value.held)
        elif isinstance(value, RowBatch):
            return _batch_of, (value.rows[value.position :], value.row_bytes, value.held_bytes)
        elif isinstance(value, zoneinfo.ZoneInfo):
            return zoneinfo.ZoneInfo, (value.key,)
        elif hasattr(type(value), "__snapshot__"):
            return value.__snapshot__()
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, allowed: dict[tuple[str, str], Any]) -> None:
        super().__init__(file)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise _refuse(module, name)
        return self._allowed[module, name]
