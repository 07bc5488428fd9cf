"""Errors in answers of success travel as they are."""

from __future__ import annotations

import pickle

from pillarbox.clients.openai_api import ErrorAnswer, error_of
from pillarbox.clients.transport import Response
from pillarbox.wire import Kind, is_overload, is_permanent


def test_an_error_of_an_answer_of_success_pickles_with_its_class() -> None:
    error = ErrorAnswer("no", None, {"a": "b"}, b"{}", Kind.OVERLOADED)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.status, copy.kind) == ("no", None, Kind.OVERLOADED)
    assert (copy.headers, copy.body) == ({"a": "b"}, b"{}")
    assert is_overload(copy)
    assert not is_permanent(copy)


def test_an_answer_without_an_error_is_none() -> None:
    assert error_of("http://host/v1", Response(200, {}, b'{"data": [], "error": null}')) is None
    refused = error_of("http://host/v1", Response(200, {}, b'{"error": {"code": 400, "message": "no"}}'))
    assert refused is not None
    assert refused.status == 400
    assert is_permanent(refused)
