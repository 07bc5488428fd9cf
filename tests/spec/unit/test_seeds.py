"""Seeds: of the environment, of the commit, of the day."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from spec import seeds


def test_the_environment_gives_the_seed() -> None:
    assert seeds.commit_seed("any", {"PILLARBOX_SEED": "17"}) == 17
    with pytest.raises(ValueError, match="invalid literal"):
        seeds.commit_seed("any", {"PILLARBOX_SEED": "x"})


def test_a_commit_has_one_seed_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {seeds.commit_seed(name, {}) for name in ("chaos", "chaos", "planted")}
    assert len(found) == 2 and all(0 <= seed < seeds.END for seed in found)
    monkeypatch.setattr(seeds, "commit", lambda: "another")
    assert seeds.commit_seed("chaos", {}) not in found


@pytest.mark.parametrize(
    ("text", "source"),
    [('[project]\nname = "a"\nversion = "1.2.3"\n', "version 1.2.3"), ("[project]\n", "no version")],
)
def test_a_tree_without_a_checkout_has_the_seed_of_its_version(
    text: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Git looks for a checkout in the folders above as well.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "pyproject.toml").write_text(text)
    assert seeds.commit(tmp_path) == source
    monkeypatch.setenv("PATH", "")
    assert seeds.commit(tmp_path) == source


def test_the_version_of_this_project_is_found() -> None:
    assert seeds.VERSION.search((seeds.ROOT / "pyproject.toml").read_text()) is not None


def test_searches_draw_by_the_seed_of_the_environment() -> None:
    assert seeds.words_for_hypothesis({"PILLARBOX_SEED": "20261128"}) == ["--hypothesis-seed=20261128"]
    assert seeds.words_for_hypothesis({}) == []


def test_the_seed_of_a_day_can_be_read() -> None:
    assert seeds.date_seed(date(2026, 11, 28)) == 20261128
