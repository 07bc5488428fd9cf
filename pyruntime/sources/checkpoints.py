"""How a checkpoint of a source's run is written down: JSON with versions. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pillarbox.sources.assignment import Checkpoint
from pillarbox.sources.link import state_from_json, state_to_json
from pillarbox.sources.pool import Waiting
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)

VERSION = 1


def checkpoint_to_json(source: Source[S, Any], checkpoint: Checkpoint[S]) -> dict[str, Any]:
    """A checkpoint as what JSON can hold."""
    splits = source.split_serializer
    known = source.checkpoint_serializer
    return {
        "version": VERSION,
        "number": checkpoint.number,
        "enumerator": {"version": known.version, "checkpoint": known.to_json(checkpoint.checkpoint)},
        "split_version": splits.version,
        "waiting": [[splits.to_json(each.split), each.skip] for each in checkpoint.waiting],
        "readers": {str(at): state_to_json(state, splits) for at, state in checkpoint.readers.items()},
    }


def checkpoint_from_json(source: Source[S, Any], written: Mapping[str, Any]) -> Checkpoint[S]:
    """What `checkpoint_to_json` has written. Raises ValueError for what it has not."""
    if not isinstance(written, Mapping) or written.get("version") != VERSION:
        raise ValueError(f"checkpoint={written!r}: must be a checkpoint of a source, version {VERSION}")
    splits = source.split_serializer
    known = written["enumerator"]
    version = written["split_version"]
    return Checkpoint(
        written["number"],
        source.checkpoint_serializer.from_json(known["version"], known["checkpoint"]),
        tuple(Waiting(splits.from_json(version, split), skip) for split, skip in written["waiting"]),
        {int(at): state_from_json(state, splits) for at, state in written["readers"].items()},
    )
