"""Messages between a coordinator and the operators that it coordinates. Plain values, any thread.

The idea is Flink's: `OperatorEvent` is the general message, `SourceEvent` (FLIP-27) one kind of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pillarbox.rpc.connection import encode

MAX_NBYTES = 64 * 1024
"""Bytes of the payload of a `SourceEvent` as JSON."""


class OperatorEvent:
    """A message between an operator and its coordinator: handed over at most once, in the sender's order.

    Those of the framework are in `pillarbox.sources.link`. What a source says to itself is a `SourceEvent`.
    """


@dataclass(frozen=True)
class SourceEvent(OperatorEvent):
    """A message of a source's own, from its enumerator to a reader or the other way.

    `kind` tells its messages apart, `payload` is what JSON can hold, 64 KiB of it at most. A message is
    handed over at most once, and those of one sender in order; one to a reader that has gone is dropped.
    """

    kind: str
    payload: Any = None


def check_event(event: SourceEvent) -> SourceEvent:
    """The event. Raises TypeError or ValueError for a payload that is too long or that JSON cannot hold."""
    if len(encode(event.payload)) > MAX_NBYTES:
        raise ValueError(f"the payload of event {event.kind!r} is too long: at most {MAX_NBYTES:,} bytes")
    return event


def event_to_json(event: SourceEvent) -> dict[str, Any]:
    """A message with the event. Raises what `check_event` raises."""
    check_event(event)
    return {"is": "event", "kind": event.kind, "payload": event.payload}


def event_from_json(body: dict[str, Any]) -> SourceEvent:
    """The event of such a message."""
    return SourceEvent(str(body["kind"]), body["payload"])
