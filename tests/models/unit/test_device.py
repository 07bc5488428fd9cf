"""The device of a model: of the task, or shared by processes in turns. No GPU is needed here."""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox.models import kinds
from pillarbox.models.device import (
    Seat,
    device_of_task,
    gpus_of_host,
    stage_of_task,
    threads_of_task,
    turn_on,
)
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


class Driver:
    """NVIDIA's library, as far as it is asked. count: of GPUs. status: of its start."""

    def __init__(self, count: int, status: int = 0) -> None:
        self.count, self.status = count, status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, found: Any) -> int:
        found._obj.value = self.count
        return 0


def test_gpus_are_counted_by_the_driver() -> None:
    def absent(name: str) -> Any:
        raise OSError(name)

    assert gpus_of_host(lambda name: Driver(0)) == 0
    assert gpus_of_host(lambda name: Driver(3)) == 3
    assert gpus_of_host(lambda name: Driver(3, status=100)) == gpus_of_host(absent) == 0


@pytest.mark.contract(
    "Processes with ONNX Runtime, or with a function that loads a model, are spread over GPUs too.",
    convicts=["onnx_on_the_first_gpu", "auto_is_told_to_loaders"],
)
def test_processes_with_onnx_and_loaders_are_spread_over_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "gpus_of_host", lambda: 2)
    with ExitStack() as stack:

        def gpu(count: int) -> int:
            seat = Seat(count, str(tmp_path))
            stack.callback(seat.close)
            return seat.index

        found = [kinds._onnx_device("auto", ["CUDAExecutionProvider"], gpu) for _ in range(3)]
        assert [device for device, _ in found] == ["cuda:0", "cuda:1", "cuda:0"]
        assert [options["device_id"] for _, [(_, options)] in found] == [0, 1, 0]
        loaded = [kinds.load(kinds.ModelSpec("path", Placed), "auto", gpu).device for _ in range(2)]
        assert loaded == ["cuda:1", "cuda:0"]
        # A package without CUDA takes no seat.
        assert kinds._onnx_device("auto", ["CPUExecutionProvider"], gpu) == ("cpu", [])
    monkeypatch.setattr(kinds, "gpus_of_host", lambda: 0)
    assert kinds._onnx_device("auto", ["CUDAExecutionProvider"], gpu) == ("cpu", [])
    assert kinds.load(kinds.ModelSpec("path", Placed), "auto", gpu).device == "cpu"


class Placed:
    def __init__(self, path: str, device: str) -> None:
        self.device = device

    def encode(self, texts: Any) -> Any:
        raise NotImplementedError


def without_device(path: str) -> Placed:
    return Placed(path, "cpu")


@pytest.mark.contract(
    "A function that takes a path alone is called with no device.", convicts=["device_is_told_to_all_loaders"]
)
def test_a_loader_without_a_device_is_called_with_a_path_alone() -> None:
    spec = kinds.ModelSpec("path", without_device)  # type: ignore[arg-type]
    for device in ("auto", "cpu"):
        assert kinds.load(spec, device, lambda count: 0).device == "cpu"
    with pytest.raises(TypeError, match=r"device='cuda:1': kind=.*without_device takes a path alone"):
        kinds.load(spec, "cuda:1", lambda count: 0)


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
