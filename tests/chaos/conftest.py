"""For tests under real faults: a place with Spark for each file of tests, and plans with given faults."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.chaos.job import STREAMS
from fuzz.chaos.places import Cluster, Local, Place
from fuzz.chaos.plan import Plan, Planned, checkpoint_format_of
from fuzz.chaos.run import Outcome, Session
from spec.seeds import VARIABLE, commit_seed

SEED = commit_seed("tests of chaos")
"""The same for the same commit; PILLARBOX_SEED gives another, or that of a run that failed."""

ROWS = 1200


@pytest.fixture(scope="session", autouse=True)
def linux() -> None:
    """The harness reads `/proc`."""
    if sys.platform != "linux":
        pytest.skip("the harness needs Linux")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Runs in a local Spark, in a process of its own."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    yield from _session(Local(tmp_path_factory.mktemp("local")), tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Runs on a standalone cluster: a master and two workers."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder) as place:
        # The cluster's clock is that of its folder.
        yield from _session(place, folder)


def _session(place: Place, folder: Path) -> Iterator[Session]:
    with Session(place, folder, print) as session:
        yield session


@pytest.fixture
def harmed() -> Callable[..., Outcome]:
    """Plays a run in which each of the named faults happens, at a random moment of its share of the job."""

    def play(
        session: Session, kind: str, *faults: str, contender: str = "ledger", parts: int | None = None
    ) -> Outcome:
        dice = random.Random(f"{SEED} {kind} {faults}")
        share = 0.75 / len(faults)
        planned = tuple(
            Planned(each, 0.05 + share * (number + dice.random()), dice.uniform(0.0, 0.1))
            for number, each in enumerate(faults)
        )
        plan = Plan(
            1,
            f"{SEED} {kind}",
            kind,
            dice.random() < 0.5 or kind == "column",
            ROWS,
            parts or (6 if kind in STREAMS else 4),
            0.08,
            0.02,
            planned,
            checkpoint_format_of(f"{SEED} {kind}", session.place.name == "cluster"),
        )
        print(f"{VARIABLE}={SEED}", plan)
        return session.play(plan, contender)

    return play
