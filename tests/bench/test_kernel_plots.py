"""The plots of the kernel's rows are drawn from the JSON files, whichever are there."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the plots need matplotlib")

from bench.kernel_plots import bars, main


def row(name: str, ratio: float, target: float | None) -> dict[str, Any]:
    return {"name": name, "ratio": ratio, "target": target}


def test_a_bar_for_each_row_with_a_peer_says_whether_its_target_is_missed() -> None:
    found = bars(
        {"Flink": [row("native", 3.0, 2.0), row("ordered", 0.5, 1.5)], "backends": [row("single", 1.0, None)]}
    )
    assert [(bar.label.split("  |  ")[0], bar.missed) for bar in found] == [
        ("single", False),
        ("native", False),
        ("ordered", True),
    ]


def test_the_command_draws_what_was_measured(tmp_path: Path) -> None:
    growth = [{"name": "oldest taken", "ns": {"10": 20.0, "100": 21.0}}]
    content = {"backends": [row("native", 3.0, 2.0)], "growth": growth}
    (tmp_path / "kernel_rows.json").write_text(json.dumps(content))
    assert main(["--measured", str(tmp_path), "--out", str(tmp_path / "plots")]) == 0
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"kernel.svg", "growth.svg"}
    assert "native  |  the mutex backend" in (tmp_path / "plots" / "kernel.svg").read_text()


def test_nothing_measured_is_an_error_that_names_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--measured", str(tmp_path)])
    assert "bench.kernel_rows" in capsys.readouterr().err
