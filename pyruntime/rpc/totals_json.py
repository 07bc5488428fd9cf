"""The totals of operators as JSON, for messages and for columns. Pure; any thread."""

from __future__ import annotations

from typing import Any

from pillarbox.aio.totals import Totals, merge
from pillarbox.rpc.codec import Codec

_CODEC = Codec(Totals)


def to_json(totals: Totals) -> list[Any]:
    """The totals as what `json.dumps` takes; `from_json` gives equal ones back."""
    return _CODEC.to_json(totals)


def from_json(written: object) -> Totals:
    """The totals that `to_json` wrote. Raises ValueError, which names the field, for anything else."""
    # Added up, buckets are looked up: a bound that no histogram has is refused here, and not in a later sum.
    return merge([Totals(), _CODEC.from_json(written)])
