"""The shipped headers show the algorithm only; builds for tests have an oracle, and defects that fit."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox.kernel import BACKENDS, TaskMailbox
from spec import defects, headers, layers, mutation, variants
from spec.variants import built
from tests.kernel.unit.native_table import MUTEX, table


def test_the_oracle_of_the_mailbox_is_not_shipped() -> None:
    assert BACKENDS == ("lock-free",)
    with pytest.raises(ValueError, match="must be one of lock-free, not 'mutex'"):
        TaskMailbox(backend="mutex")
    assert table.create(MUTEX, 64) is None
    assert not any("MutexInbox" in path.read_text() for path in headers.SHIPPED.iterdir())
    assert "MutexInbox" in (headers.for_tests() / "pillarbox_inbox.h").read_text()


@pytest.mark.slow
@pytest.mark.timeout(620)
def test_the_oracle_keeps_the_contract_of_the_mailbox() -> None:
    words = ["tests/kernel", "tests/spec/test_conformance.py", "tests/testing", "-k", "mutex or make1"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *words],
        env=os.environ | {"PYTHONPATH": str(built("checked"))},
        cwd=headers.ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed is not None and int(passed[1]) > 100, done.stdout[-3000:]


# ---- defects

SOURCE = """\
#pragma once
inline int halved(int number) {
    if (number < 0) return 0;
    return number / 2;
}
"""


def defect(name: str, right: str, wrong: str) -> defects.Seeded:
    return defects.Seeded(name, "the part", "does harm", (defects.Place("some.h", right, wrong),))


def test_every_defect_still_has_its_place_in_the_code_and_changes_it() -> None:
    seeded = defects.seeded()
    assert len(seeded) >= 150
    assert {one.part for one in seeded} == {
        "the lock-free inbox",
        "the inbox with a mutex",
        "the mail",
        "the mailbox thread's side",
        "the result queue",
        "the hand-over",
        "the deadlines and their slots",
        "the C interface",
        "the Cython modules",
        "the waits",
        "the processor",
        "the task",
        "the chain",
        "the operator",
        "the identity of rows",
        "the runners",
        "the scheduler",
        "the ledger session",
        "the claims",
        "the holder of a run",
        "rows by key",
        "the hedges",
        "the endpoints of a service",
        "the cache",
        "jobs",
        "the collector",
        "results on Spark",
        "the buckets of streams",
        "the fetchers",
        "slices of Parquet",
        "the clients",
        "the models",
        "the tokens",
        "tables without Spark",
        "the coordinator",
        "the slots that tasks share",
        "the findings of tasks",
        "limits that are learned",
        "the breaker",
        "the capacity that is found",
    }
    unchanged = []
    for one in seeded:
        for file in {place.file for place in one.places}:
            text = (headers.ROOT / file).read_text()
            if defects.with_one(file, text, one) == text:
                unchanged.append((one.name, file))
    assert unchanged == []


def test_headers_in_which_every_choice_is_right_are_those_that_are_shipped() -> None:
    seeded = defects.seeded()
    files = {place.file for one in seeded for place in one.places if place.file.endswith(".h")}
    assert len(files) >= 10
    for file in files:
        text = (headers.ROOT / file).read_text()
        found = defects.spans(file, text, seeded)
        assert found.rendered(text, lambda right, wrong: right) == text
        named = set(re.findall(r"PILLARBOX_PLANTED\((\w+)\)", defects.plantable(file, text, seeded)))
        assert named == {one.name for one in seeded if any(place.file == file for place in one.places)}


def test_what_is_shipped_knows_neither_defects_nor_records() -> None:
    sources = [path for path in (headers.ROOT / "kernel").rglob("*") if path.suffix in {".h", ".pyx", ".pxd"}]
    assert len(sources) > 40
    knowing = re.compile(r"PILLARBOX_(DEFECT|PLANTED|SEEDED|TRACE)|\bTrace\b|[Dd]efect")
    assert [path.name for path in sources if knowing.search(path.read_text())] == []


def test_a_statement_becomes_a_branch_and_an_expression_a_conditional_one() -> None:
    seeded = [
        defect("forgets", "if (number < 0) return 0;", ""),
        defect("low", "number  <\n0", "number < 1"),
        defect("doubles", "return «number / 2»;", "number * 2"),
    ]
    statement = "if ((PILLARBOX_PLANTED(low) ? (number < 1) : (number < 0))) return 0;"
    text = SOURCE.replace("#pragma once\n", '#pragma once\n\n#include "pillarbox_defects.h"\n')
    text = text.replace(
        "if (number < 0) return 0;", f"{{ if (PILLARBOX_PLANTED(forgets)) {{  }} else {{ {statement} }} }}"
    )
    text = text.replace("number / 2", "(PILLARBOX_PLANTED(doubles) ? (number * 2) : (number / 2))")
    assert defects.plantable("some.h", SOURCE, seeded) == text


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ("number % 2", "must have this once, not 0 times:\nnumber % 2"),
        ("return", "must have this once, not 2 times:\nreturn"),
        ("number < 0) return", "late overlaps with early"),
    ],
)
def test_a_defect_without_a_place_of_its_own_is_refused(right: str, said: str) -> None:
    seeded = [defect("early", "return 0;", "return 1;"), defect("late", right, "2")]
    with pytest.raises(defects.DefectError, match=re.escape(said)):
        defects.plantable("some.h", SOURCE, seeded)


def test_a_defect_that_is_not_written_as_it_must_be_is_refused(tmp_path: Path) -> None:
    head = 'part = "the part"\nfile = "some.h"\n[harm]\n'
    whole = 'about = "does harm"\nright = "a"\nwrong = "b"\n'
    for missing in whole.splitlines(keepends=True):
        (tmp_path / "part.toml").write_text(head + whole.replace(missing, ""))
        with pytest.raises(defects.DefectError, match="harm must have about, right, wrong"):
            defects.read(tmp_path / "part.toml")
    (tmp_path / "part.toml").write_text(head + whole + 'wrnog = "c"\n')
    with pytest.raises(defects.DefectError, match="harm must have"):
        defects.read(tmp_path / "part.toml")
    (tmp_path / "part.toml").write_text(
        head + whole + '[[harm.and]]\nfile = "other.h"\nright = "c"\nwrong = ""\n'
    )
    assert defects.read(tmp_path / "part.toml")[0].places == (
        defects.Place("some.h", "a", "b"),
        defects.Place("other.h", "c", ""),
    )


def test_a_defect_of_python_code_is_planted_in_a_copy_of_a_build(tmp_path: Path) -> None:
    (one,) = (each for each in defects.seeded() if each.name == "emitted_before_durable")
    assert one.copied == ("pyruntime/aio/ledger_records.py",)
    package = tmp_path / "usual" / "lib" / "pillarbox"
    (package / "aio").mkdir(parents=True)
    for path in (package / "__init__.py", package / "aio" / "ledger_records.py"):
        path.write_text("usual\n")
    texts = {file: defects.with_one(file, (headers.ROOT / file).read_text(), one) for file in one.copied}
    variants.plant(texts, tmp_path / "usual", tmp_path / "planted")
    planted = tmp_path / "planted" / "lib" / "pillarbox"
    assert "kept[0][0] <= commit.through + 1 and not" in (planted / "aio" / "ledger_records.py").read_text()
    assert (
        (planted / "__init__.py").read_text()
        == (package / "aio" / "ledger_records.py").read_text()
        == "usual\n"
    )


def test_a_defect_of_python_code_of_several_lines_is_code() -> None:
    for one in defects.seeded():
        for file in one.copied:
            if file.endswith(".py"):
                ast.parse(defects.with_one(file, (headers.ROOT / file).read_text(), one))


@pytest.fixture
def whole() -> dict[str, dict[str, str]]:
    """The results of a run in which every layer catches every defect that it looks at."""
    return {
        one.name: {layer.name: layers.CAUGHT for layer in layers.LAYERS if one.part in layer.parts}
        for one in defects.seeded()
    }


def test_each_defect_counts_in_the_file_that_it_is_in(whole: dict[str, dict[str, str]]) -> None:
    def rows() -> dict[str, list[int]]:
        found = re.findall(r"(?m)^\| `(\S+)` \| (.+) \|$", mutation.coverage(whole))
        return {file: [int(count) for count in counts.split(" | ")] for file, counts in found}

    before = rows()
    assert before["kernel/include/pillarbox_slots.h"] == [3, 3, 0, 0, 0]
    assert sum(planted for planted, *_ in before.values()) >= len(whole)
    assert {Path(file).name for file in before if file.endswith(".pyx")} == {
        path.name
        for path in (headers.ROOT / "kernel").glob("*.pyx")
        if path.name
        not in (
            *("alike.pyx", "checksum.pyx", "collector.pyx", "columns.pyx", "libcurl.pyx", "number_lists.pyx"),
            "queues.pyx",
        )
    }
    unnoticed = dict.fromkeys(whole["full_page_forgotten"], layers.UNNOTICED)
    whole["full_page_forgotten"] = unnoticed | {"contract": layers.TIMED_OUT}
    whole["freed_page_looked_into"] = unnoticed | {"contract": layers.TIMED_OUT, "models": layers.CAUGHT}
    whole["page_with_room_linked_back"] = unnoticed
    assert rows() == before | {"kernel/include/pillarbox_slots.h": [3, 1, 1, 1, 0]}
    whole["page_with_room_linked_back"] = {"contract": layers.UNNOTICED}
    assert rows() == before | {"kernel/include/pillarbox_slots.h": [3, 1, 1, 0, 1]}
    assert "Without a planted defect:" in mutation.coverage(whole)
    assert "`kernel/include/pillarbox_monitor.h`" in mutation.coverage(whole)


def test_the_defects_of_the_kernel_are_tried_by_the_tests_of_its_c_interface() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *layers.CONTRACT], cwd=headers.ROOT, capture_output=True, text=True, check=False
    )
    assert (
        "tests/kernel/test_native.py::" in done.stdout
        and "tests/kernel/test_native_queue.py::" in done.stdout
    )
    assert "capi_stress" in {name for name, _ in layers.STRESS}


def test_a_run_of_what_is_missing_tries_what_no_earlier_run_has_tried() -> None:
    (one,) = (each for each in defects.seeded() if each.name == "native_post_leaks")
    names = [layer.name for layer in mutation.to_try(one, layers.LAYERS, {})]
    assert {"contract", "stress"} <= set(names) and "graph" not in names
    known = {one.name: {"contract": layers.UNNOTICED}}
    assert [layer.name for layer in mutation.to_try(one, layers.LAYERS, known)] == names[1:]
