"""Every memory order of the kernel's headers is needed, and a layer of checks says so."""

import re
from pathlib import Path

import pytest

from spec import headers, orders
from spec.defects import DefectError

ENTRY = """\
[some]
file = "kernel/include/some.h"
right = "word.load(std::memory_order_acquire)"
"""


@pytest.mark.contract(
    "Each memory order stronger than relaxed is convicted when it is weakened, or explained."
)
def test_every_order_of_the_headers_is_in_the_table_once() -> None:
    assert orders.unnamed() == []
    assert len(orders.weakened()) >= 40
    assert all(len(why.split()) >= 8 for order in orders.read() for why in order.explained.values())


def test_an_order_that_is_not_in_the_table_is_found(tmp_path: Path) -> None:
    header = tmp_path / "some.h"
    (tmp_path / "table.toml").write_text(ENTRY + 'convicts.relaxed = "queue_schedules visited"\n')
    known = orders.read(tmp_path / "table.toml")
    header.write_text("int a = word.load(std::memory_order_acquire);  // memory_order_release\n")
    assert orders.unnamed(tmp_path, known) == []
    header.write_text(
        header.read_text() + "other.store(f(1), std::memory_order_release);\nother->exchange(2);\n"
    )
    assert orders.unnamed(tmp_path, known) == ["some.h:2: release", "some.h:3: none, which is seq_cst"]
    assert len(orders.unnamed(tmp_path, known * 2)) == 3


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (ENTRY, "acquire must say once what relaxed does, not []"),
        (ENTRY + 'convicts.relaxed = "a b"\nexplained.relaxed = "c"\n', "not ['relaxed', 'relaxed']"),
        (ENTRY + 'convicts.release = "a b"\n', "not ['release']"),
        (ENTRY.replace("acquire", "relaxed"), "must have one order that is not relaxed"),
    ],
)
def test_an_entry_that_leaves_a_weaker_form_out_is_refused(tmp_path: Path, entry: str, told: str) -> None:
    (tmp_path / "table.toml").write_text(entry)
    with pytest.raises(DefectError, match=re.escape(told)):
        orders.read(tmp_path / "table.toml")


def test_the_table_that_readers_see_is_that_of_the_checks() -> None:
    text = orders.README.read_text()
    assert text.split(orders.BEGIN)[1].split(orders.END)[0].strip() == orders.table()


def test_one_build_has_every_weaker_form_to_choose_from() -> None:
    built = headers.for_tests(seeded=orders.weakened())
    planted = {
        name
        for path in built.iterdir()
        for name in re.findall(r"PILLARBOX_PLANTED\((\w+)\)", path.read_text())
    }
    assert planted >= {form.name for form in orders.weakened()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["park", "count", "late", "arm", "claim_alone", "visit", "slab"])
def test_a_weakened_order_is_convicted_where_the_table_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    order = next(one for one in orders.read() if one.name == name)
    assert orders.try_order(order), capsys.readouterr().out


@pytest.mark.slow
def test_a_form_that_survives_where_the_table_says_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    park = next(one for one in orders.read() if one.name == "park")
    elsewhere = orders.Order("park", park.place, park.order, {"relaxed": "mailbox_schedules mutex/armed"}, {})
    assert not orders.try_order(elsewhere)
    assert "SURVIVED mutex/armed" in capsys.readouterr().out
