"""Options of clients that have the names of what the operator looks for in functions."""

from __future__ import annotations

import json

from pillarbox.aio.function import parse_of
from pillarbox.clients import HttpLookup


def test_a_clients_option_that_is_called_parse_is_not_asked_again() -> None:
    assert parse_of(HttpLookup("https://one/{a}", parse=json.loads)) is None
    assert parse_of(HttpLookup("https://one/{a}")) is None
