"""The note of a stage whose model cannot be loaded, for the processes that come after the one that tried."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from pillarbox.models import LocalEmbeddings, ModelUnavailable
from tests.models.loaders import fails, notes


@pytest.mark.contract(
    "A model that could not be loaded in a stage is not tried again there, but by the next stage.",
    convicts=["failed_load_of_each_task"],
)
def test_a_stage_does_not_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Spark has it in its workers, which these are not.
    stage = SimpleNamespace(number=7)
    task = SimpleNamespace(cpus=lambda: 1, stageId=lambda: stage.number, resources=dict)
    context = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: task))
    monkeypatch.setitem(sys.modules, "pyspark", context)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "model"
    folder.mkdir()

    async def enter() -> str:
        with pytest.raises(ModelUnavailable) as failed:
            async with LocalEmbeddings(str(folder), kind=fails):
                pass
        return str(failed.value)

    words = {asyncio.run(enter()) for _ in range(3)}
    assert len(words) == 1 and "weights.bin is missing" in words.pop()
    assert len(notes(folder, "loads")) == 1
    stage.number = 8
    asyncio.run(enter())
    assert len(notes(folder, "loads")) == 2
