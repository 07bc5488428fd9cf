"""A finished file of a ledger and its name: when a loss of power takes neither away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.local_folder import LocalFolder


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="what is synced is named by /proc")
@pytest.mark.contract(convicts=["name_not_durable"])
def test_the_name_of_a_merged_segment_is_durable_before_it_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Ledger(str(tmp_path / "ledger")).folder(Scope("run", "uid"))
    assert isinstance(folder, LocalFolder)
    folder.make()
    events: list[str] = []
    sync, rename = os.fsync, os.rename

    def synced(file: int) -> None:
        sync(file)
        events.append(os.readlink(f"/proc/self/fd/{file}"))

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        events.append("renamed")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    Path(folder.path, "some.part").write_bytes(b"content")
    folder.publish("some.part", "some.seg")
    assert Path(folder.path, "some.seg").read_bytes() == b"content"
    assert folder.path in events[events.index("renamed") + 1 :]
