"""The device of a model: of the task, or shared by processes in turns. No GPU is needed here."""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from pillarbox.models.device import Seat, device_of_task, stage_of_task, threads_of_task, turn_on
from pillarbox.models.host_folder import own_folder

TAKE_TURN = """
import sys
from pillarbox.models.device import turn_on
with turn_on("cuda:0", sys.argv[1]):
    print("in turn", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for Spark's task: a local Spark gives no GPUs."""
    gpu = SimpleNamespace(addresses=["3"])
    task = SimpleNamespace(cpus=lambda: 2, stageId=lambda: 7, given={"gpu": gpu})
    task.resources = lambda: task.given
    context = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: task))
    monkeypatch.setitem(sys.modules, "pyspark", context)
    return task


@pytest.mark.contract(
    "A model is on the GPU that Spark has given to its task.", convicts=["gpu_of_another_task"]
)
def test_the_device_is_that_of_the_task(task: SimpleNamespace) -> None:
    assert device_of_task("auto") == "cuda:3"
    assert device_of_task("cpu") == "cpu"
    assert threads_of_task() == 2
    assert (stage_of_task() or "").endswith("-7")
    task.given = {}
    assert device_of_task("auto") == "auto"


def test_outside_of_a_task_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert (device_of_task("auto"), threads_of_task(), stage_of_task()) == ("auto", None, None)


@pytest.mark.contract("Processes that share GPUs are spread over them.", convicts=["seat_for_all"])
def test_processes_are_spread_over_gpus(tmp_path: Path) -> None:
    with ExitStack() as stack:
        seats = []
        for _ in range(5):
            seat = Seat(2, str(tmp_path))
            stack.callback(seat.close)
            seats.append(seat.index)
        assert seats == [0, 1, 0, 1, 0]
    again = Seat(2, str(tmp_path))
    assert again.index == 0
    again.close()


@pytest.mark.contract("Processes that share a GPU compute by turns.", convicts=["gpu_without_turns"])
def test_processes_compute_by_turns(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with turn_on("cpu", str(tmp_path)), turn_on("cuda:0", str(tmp_path)):
        other = subprocess.Popen([sys.executable, "-c", TAKE_TURN, str(tmp_path)], text=True, **pipes)  # type: ignore[call-overload]
        third = subprocess.run(
            [sys.executable, "-c", TAKE_TURN.replace("cuda:0", "cuda:1"), str(tmp_path)],
            input="",
            capture_output=True,
            text=True,
            check=True,
        )
        assert third.stdout == "in turn\n", "another GPU is free"
        # As long as the turn is here, the other process prints nothing.
        assert select.select([other.stdout], [], [], 0)[0] == []
    assert other.stdout.readline() == "in turn\n"
    other.communicate()


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    own_folder(str(tmp_path / "mine"))
    assert (tmp_path / "mine").stat().st_mode & 0o077 == 0
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(PermissionError, match="others may write into it"):
        own_folder(str(tmp_path / "mine"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        own_folder(str(tmp_path / "link"))


@pytest.mark.parametrize(
    ("visible", "one", "other", "is_same"),
    [
        ("", "cuda", "cuda:0", True),
        ("2,3", "cuda:0", "cuda:1", False),
        ("3", "cuda:0", "cuda", True),
        ("GPU-1,GPU-2", "cuda:1", "cuda:0", False),
    ],
)
def test_the_turn_is_that_of_the_gpu_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, one: str, other: str, is_same: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for device in (one, other):
        with turn_on(device, str(tmp_path)):
            pass
    assert len([*tmp_path.iterdir()]) == (1 if is_same else 2)


def test_two_processes_that_see_one_gpu_each_take_no_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for visible in ("0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with turn_on("cuda:0", str(tmp_path)):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {"cuda-0.lock", "cuda-1.lock"}
