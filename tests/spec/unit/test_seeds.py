"""Seeds: of the environment, of the commit, of the day."""

from __future__ import annotations

from datetime import date

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


def test_a_tree_without_a_checkout_has_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "ROOT", seeds.ROOT / "no such folder")
    assert seeds.commit() == seeds.NO_COMMIT
    assert 0 <= seeds.commit_seed("chaos", {}) < seeds.END


def test_the_seed_of_a_day_can_be_read() -> None:
    assert seeds.date_seed(date(2026, 11, 28)) == 20261128
