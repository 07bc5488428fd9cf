"""The fuzzer: one small round of each target, what it says, and that it finds a planted mistake again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fuzz import targets
from fuzz.__main__ import fuzz, main
from pillarbox.kernel import BACKENDS, OrderedQueue, TaskMailbox
from pillarbox.testing.suites import queue_suite


class CountsOneTooMany(OrderedQueue):
    def __len__(self) -> int:
        return super().__len__() + 1


def run_wrong_queue(out: Path) -> None:
    make = partial(CountsOneTooMany, 3)
    targets.run_suite(partial(queue_suite, make, capacity=3, ordered=True, name="wrong_queue"), out, 30, 10)


def test_every_target_is_there() -> None:
    expected = {f"{kind}-{backend}" for kind in ("mailbox", "histories") for backend in BACKENDS}
    assert set(targets.TARGETS) >= expected | {"queue-ordered", "queue-unordered", "handover", "contracts"}


@pytest.mark.slow
def test_a_round_of_schedules_finds_a_planted_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets.run_schedules("queue_schedules", tmp_path, count=200)
    program = targets.compiled("queue_schedules", "-DPILLARBOX_SCHED", planted=True)
    monkeypatch.setattr(targets, "compiled", lambda *_: program)
    monkeypatch.setenv("PILLARBOX_DEFECT", "passes_watermark")
    with pytest.raises(targets.ScheduleError, match="replay around-a-watermark"):
        targets.run_schedules("queue_schedules", tmp_path, count=200)


def test_a_round_that_finds_nothing_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = partial(targets.check_history, BACKENDS[0], 7, 100, tmp_path)
    assert fuzz({"quick": lambda out: quick()}, 0.0, tmp_path) is None
    assert "quick: round 1" in capsys.readouterr().out


def test_a_planted_mistake_is_found_printed_kept_and_found_again_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a seed for all tests, as long suites have one, Hypothesis keeps no examples.
    monkeypatch.setattr("hypothesis.core.global_force_seed", None)
    assert fuzz({"wrong": run_wrong_queue}, 60.0, tmp_path) == "wrong"
    captured = capsys.readouterr()
    assert "Disagreement: len()" in captured.err and "wrong has found something" in captured.out
    assert list((tmp_path / "examples").rglob("*"))
    assert fuzz({"wrong": run_wrong_queue}, 60.0, tmp_path) == "wrong"


def test_a_wrong_history_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(TaskMailbox):
        def close(self) -> list[Any]:
            return super().close()[1:]

        def take(self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False) -> Any:
            super().take(p, timeout, skip_deferrable=skip_deferrable)
            return super().take(p, timeout, skip_deferrable=skip_deferrable)

    monkeypatch.setattr("fuzz.workload.TaskMailbox", Forgetful)
    with pytest.raises(targets.HistoryError, match="not linearizable") as found:
        targets.check_history(BACKENDS[0], 3, 50, tmp_path)
    assert f"record({BACKENDS[0]!r}, 3, 50)" in str(found.value)
    written = (tmp_path / f"history-{BACKENDS[0]}-3.txt").read_text()
    assert written.count("Event(") > 50


def test_a_name_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mailbox-x"])
    assert "no target mailbox-x; there are mailbox-" in capsys.readouterr().err
