"""The start of what watches a server, on a machine that is too busy for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pillarbox.models import Served, ServerUnavailable, served

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs locks of files")


@pytest.mark.contract(
    "What watches a server and does not start in time is an error in words, without the keys of the server.",
    convicts=["late_launch_is_a_raw_error"],
)
def test_a_launch_that_is_late_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    monkeypatch.setattr(served, "LAUNCH_TIMEOUT_S", 0.1)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = Served(["program", "{port}"], env={"PLACE": "not to be told"})
    with pytest.raises(ServerUnavailable, match="what watches program has not started within 0 s") as found:
        server.__enter__()
    assert "not to be told" not in str(found.value) and found.value.__cause__ is None
