"""Real processes are killed by SIGKILL: what they have acknowledged is found, by everybody the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.upkeep import compact
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")
ROOT = Path(__file__).resolve().parents[3]


def started(ledger: Ledger, first: int, who: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.ledger.unit.writing_process", ledger.location, str(first), who]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ})


def acknowledged(process: subprocess.Popen[bytes], until: int) -> bytes:
    """The output of a process that is killed after so many bytes, and the bytes on their way."""
    assert process.stdout is not None
    said = b""
    while len(said) < until:
        part = os.read(process.stdout.fileno(), 4096)
        assert part, "the process ended by itself"
        said += part
    process.kill()
    process.wait()
    said += process.stdout.read()
    process.stdout.close()
    return said


def parsed(said: bytes) -> dict[int, str]:
    whole = said[: said.rfind(b"\n") + 1].decode()
    return {int(line.split()[0]): line.split()[1] for line in whole.splitlines()}


@pytest.mark.contract
@pytest.mark.parametrize("seed", range(4))
def test_what_a_killed_process_has_acknowledged_is_found(tmp_path: Path, seed: int) -> None:
    ledger = Ledger(str(tmp_path))
    length = random.Random(seed).randrange(1, 3000)
    said = parsed(acknowledged(started(ledger, 0, "me"), length))
    assert said
    reader = ledger.reader(SCOPE)
    for number, who in said.items():
        record = reader.get(key(number))
        assert record is not None and record.value == who, (seed, number)
    assert all(damage.is_tail for damage in reader.damage)
    # A replay finds them in what its compaction leaves as well, and goes on in a segment of its own.
    with ledger.writer(SCOPE) as writer:
        writer.append(key(10**6), "later")
    compact(ledger, SCOPE)
    again = ledger.reader(SCOPE)
    assert all(key(number) in again for number in [*said, 10**6])
    assert again.damage == []


@pytest.mark.contract
def test_of_two_processes_with_the_same_keys_everybody_has_the_same_results(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    one, other = started(ledger, 0, "one"), started(ledger, 0, "other")
    first = parsed(acknowledged(one, 4000))
    second = parsed(acknowledged(other, 4000))
    both = first.keys() & second.keys()
    assert len(both) > 50
    assert {number: first[number] for number in both} == {number: second[number] for number in both}
    reader = ledger.reader(SCOPE)
    for number, who in (first | second).items():
        record = reader.get(key(number))
        assert record is not None and record.value == who, number
    # A record a key: nobody has written what another had.
    assert len(reader) == len({record.key for record in reader.records()})
