"""A new policy with an option of its own needs its file, and lines of the table of options: no other file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.test_rings import ROOT, copy_without, run_in

POLICY = '''"""Makes no call of a row that is too long."""

from pillarbox.aio.policy import Found
from pillarbox.aio.policy_parts import OptionPolicy


class LengthPolicy(OptionPolicy):
    def __init__(self, longest):
        self.longest, self.left_out = longest, 0

    @classmethod
    def of(cls, parts):
        return cls(parts.options.longest)

    def open(self, services):
        self.began = None

    def start(self):
        self.began = True

    def admit(self, call):
        assert self.began
        if len(call.row) <= self.longest:
            return None
        self.left_out += 1
        return Found("too long")

    def statistics(self):
        return {"left_out": float(self.left_out)}
'''
JOB = """
from pillarbox import Limit, Options, async_map
from pillarbox.policies import CallPolicy, Found

class First(CallPolicy):
    def admit(self, call):
        return Found("mine") if call.row == "longest of all" else None

async def call(row):
    return row.upper()

rows = ["a", "much too long", "longest of all", "b"]
done = async_map(rows, call, options=Options(longest=3, policies=[First()], per_key=Limit(len)))
print([*done], done.statistics().policies)
print([*async_map(rows[:2], call)])
try:
    Options(longes=3)
except TypeError as error:
    print(error)
"""


def edited(table: str) -> str:
    """`aio/options.py` with the option `longest`: its declaration, its parameter, its check."""
    for before, more in (
        (
            r"(?m)^    latency: Latency$",
            "    longest: int | None = dataclasses.field(\n        metadata=_brings("
            '"pillarbox.aio.policies.length:LengthPolicy", behind="retry")\n    )\n',
        ),
        (r'(?m)^        latency: Latency = "normal",$', "        longest: int | None = None,\n"),
        (
            r'(?m)^            "latency": check_choice',
            '            "longest": check_positive_int("longest", longest) if longest else None,\n',
        ),
    ):
        found = re.search(before, table)
        assert found is not None, before
        table = table[: found.start()] + more + table[found.start() :]
    return table


@pytest.mark.contract(
    "A new policy with an option of its own is its file and lines of the table of options: nothing else."
)
def test_a_new_policy_touches_the_table_of_options_alone(tmp_path: Path) -> None:
    copy = copy_without((), tmp_path)
    table = copy / "pillarbox" / "aio" / "options.py"
    text = edited((ROOT / "pyruntime" / "aio" / "options.py").read_text())
    table.unlink()
    table.write_text(text)
    (copy / "pillarbox" / "aio" / "policies" / "length.py").write_text(POLICY)
    results, without, refused = run_in(copy, ["-W", "error", "-c", JOB]).splitlines()
    assert results == "['A', 'too long', 'mine', 'B'] {'left_out': 1.0}"
    assert without == "['A', 'MUCH TOO LONG']"
    assert "longes" in refused and "longest" in refused
