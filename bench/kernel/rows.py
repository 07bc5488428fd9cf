"""The scenarios of `bench.kernel`: who does which work beside whom, and what ours must reach.

A unit of work, and what each program does for it, stands in `bench/README.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.kernel.peers import Program


@dataclass(frozen=True)
class Contender:
    """A program that does the work of a scenario, or the reason why it does not."""

    name: str
    command: tuple[str, ...]
    missing: str = ""
    counted: bool = True
    """Instructions can be counted: no JIT compiler, one thread."""


@dataclass(frozen=True)
class Scenario:
    """One work, done by several. The first contender is ours."""

    name: str
    contenders: tuple[Contender, ...]
    operations: int
    """Of one chunk."""
    beside: str = ""
    """The peer that ours is to be compared with,"""
    target: float | None = None
    """and how many times as fast it must be; None: for comparison only."""
    unit: str = "ns"


class _Programs:
    def __init__(self, found: Mapping[str, Program]) -> None:
        self._found = found

    def by(self, program: str, name: str, words: str, *, counted: bool) -> Contender:
        known = self._found[program]
        return Contender(name, (*known.command, *words.split()), known.missing, counted and not known.missing)


def scenarios(found: Mapping[str, Program]) -> Iterator[Scenario]:
    """All of them, in the order of the table."""
    programs = _Programs(found)
    yield from _native(programs)
    yield from _entries(programs)
    yield from _growth(programs)
    yield from _python(programs, "python", "Python")
    yield from _loop(programs, "python", "Python")
    if not found["free python"].missing:
        yield from _python(programs, "free python", "free-threaded Python")
        yield from _loop(programs, "free python", "free-threaded Python")


def _native(programs: _Programs) -> Iterator[Scenario]:
    def row(
        name: str,
        words: str,
        peers: Mapping[str, str],
        operations: int = 10_000,
        *,
        beside: str = "",
        target: float | None = None,
        counted: bool = False,
        unit: str = "ns",
    ) -> Scenario:
        """`words` has {} for the kind; `peers` says, by program, which kinds there are."""
        contenders = [programs.by("native", "Pillarbox", words.format("lock-free"), counted=counted)]
        for program, kinds in peers.items():
            for entry in kinds.split(", "):
                label, kind = entry.split("=")
                is_counted = counted and program != "java"
                contenders.append(programs.by(program, label, words.format(kind), counted=is_counted))
        return Scenario(f"native: {name}", tuple(contenders), operations, beside, target, unit)

    jctools = "JCTools array=array, JCTools linked=linked"
    all_of_them = {
        "native": "mutex=mutex",
        "moodycamel": "moodycamel=moodycamel",
        "java": f"Flink=flink, {jctools}",
        "rust": "SegQueue=seg, crossbeam channel=channel",
    }
    yield row(
        "put, take and run, 1 producer", "producers {} 1", all_of_them, beside="JCTools array", target=1.0
    )
    yield row("put, take and run, 2 producers", "producers {} 2", all_of_them, beside="Flink", target=2.0)
    yield row("put, take and run, one thread", "single {} 0", all_of_them, counted=True)
    yield row("a burst of 1,000, then run, one thread", "batch {} 0", all_of_them, counted=True)
    together = {"moodycamel": "moodycamel=moodycamel", "java": jctools}
    yield row("64 at a time, 1 producer", "chains {} 64", together)
    for percentage in (50, 99):
        yield row(f"there and back, p{percentage}", f"thereandback {{}} {percentage}", all_of_them, 200)
    bounded = {
        "java": "ArrayBlockingQueue=blocking-bounded, JCTools bounded=mpsc-bounded",
        "rust": "crossbeam bounded=channel, ArrayQueue=seg",
    }
    yield row("bounded hand-over, 64 items; ours of bytes, too", "handover {} 64", bounded)
    yield row("a deadline armed and cancelled, 1,000 wait", "deadline {} 1000", {}, counted=True)
    yield row(
        "take(1) past 10,000 of priority 0",
        "past {} 10000",
        {"java": "Flink=flink"},
        100,
        beside="Flink",
        target=50.0,
    )
    yield row(
        "bytes of a mail that waits",
        "bytes {} 0",
        {"native": "mutex=mutex", "moodycamel": "moodycamel=moodycamel"},
        100_000,
        unit="bytes",
    )


def _growth(programs: _Programs) -> Iterator[Scenario]:
    """An operation costs at most twice as much with many waiting as with few."""
    works = {
        "put behind those that wait, take the oldest": ("among lock-free", 5_000, 2_000),
        "put of a higher priority, taken past those that wait": ("past lock-free", 200, 200),
        "ordered entries in order": ("steady ordered", 5_000, 2_000),
        "unordered entries in order": ("steady unordered", 5_000, 2_000),
    }
    for language, program, prefix in (("native", "native", ""), ("Python", "python", "bench.python_chunks ")):
        for name, (words, native, python) in works.items():
            yield Scenario(
                f"{language}: {name}",
                tuple(
                    programs.by(
                        program, f"Pillarbox, {waiting:,} wait", f"{prefix}{words} {waiting}", counted=False
                    )
                    for waiting in (100_000, 1_000, 10)
                ),
                native if language == "native" else python,
                "Pillarbox, 10 wait",
                0.5,
            )


def _entries(programs: _Programs) -> Iterator[Scenario]:
    works = {
        "ordered entries, completed at random": ("rounds ordered{} 0", 1.5),
        "ordered entries, completed in order": ("steady ordered{} 1000", None),
        "unordered entries, at random, a watermark every 10": ("rounds unordered{} 10", 2.0),
        "unordered entries, at random": ("rounds unordered{} 0", None),
    }
    for name, (words, target) in works.items():
        yield Scenario(
            f"native: {name}",
            (
                programs.by("native", "Pillarbox, one thread", words.format("-owner"), counted=True),
                programs.by("native", "Pillarbox, any thread completes", words.format(""), counted=True),
                programs.by("java", "Flink", words.format(""), counted=False),
            ),
            10_000,
            "Flink",
            target,
        )
    for name, (words, target) in works.items():
        work, kind, number = words.split()
        order = kind.format("")
        yield Scenario(
            f"Python: {name}",
            (
                programs.by(
                    "python",
                    "Pillarbox, one thread",
                    f"bench.python_chunks {words.format('-owner')}",
                    counted=True,
                ),
                programs.by(
                    "python",
                    "Pillarbox, any thread completes",
                    f"bench.python_chunks {words.format('')}",
                    counted=True,
                ),
                programs.by(
                    "pyflink", "PyFlink", f"{order} {'steady' if work == 'steady' else number}", counted=False
                ),
            ),
            1_000,
            "PyFlink",
            None if target is None else 10.0,
        )


STANDARD = ("SimpleQueue", "queue.Queue")
MIXED = ("janus", "aiologic", "culsans")


def _row(
    programs: _Programs,
    python: str,
    name: str,
    words: str,
    peers: tuple[str, ...],
    operations: int,
    *,
    beside: str = "",
    target: float | None = None,
    counted: bool = False,
    unit: str = "ns",
) -> Scenario:
    def contender(kind: str, label: str) -> Contender:
        program = "python queues" if python == "python" and kind in MIXED else python
        may_count = counted and python == "python" and kind not in MIXED
        return programs.by(
            program, label, f"bench.kernel.python_queues {words.format(kind)}", counted=may_count
        )

    contenders = [contender("pillarbox", "Pillarbox"), *(contender(kind, kind) for kind in peers)]
    return Scenario(name, tuple(contenders), operations, beside, target, unit)


def _python(programs: _Programs, python: str, language: str) -> Iterator[Scenario]:
    def row(
        name: str, words: str, peers: tuple[str, ...], operations: int = 1_000, **rest: object
    ) -> Scenario:
        return _row(programs, python, f"{language}: {name}", words, peers, operations, **rest)  # type: ignore[arg-type]

    threads = STANDARD + MIXED
    one = (*STANDARD, "asyncio.Queue", *MIXED)
    is_usual = python == "python"
    yield row(
        "put and try_take, one thread",
        "single {}",
        one,
        beside="SimpleQueue",
        target=1.15 if is_usual else None,
        counted=True,
    )
    yield row(
        "put and take by another thread",
        "producers {} 1",
        threads,
        beside="SimpleQueue",
        target=1.2 if is_usual else None,
    )
    yield row("put and take, 2 producers", "producers {} 2", threads)
    yield row("a burst of 1,000, then taken, one thread", "batch {}", one, counted=True)
    yield row("64 at a time, then run", "chains {} 64", ("SimpleQueue",))
    for percentage in (50, 99):
        yield row(f"there and back, p{percentage}", f"thereandback {{}} {percentage}", threads, 100)
    yield row("bounded hand-over, 64 items; ours of bytes, too", "handover {} 64", ("queue.Queue", *MIXED))
    yield row("a mail run by a task's loop", "processor {}", ("SimpleQueue",), counted=True)
    yield row("a deadline armed and cancelled, 1,000 wait", "deadline {} 1000", ("call_later",), counted=True)
    yield row("bytes of a call that waits", "bytes {}", one, 20_000, unit="bytes")


def _loop(programs: _Programs, python: str, language: str) -> Iterator[Scenario]:
    peers = ("call_soon_threadsafe", *MIXED)
    yield _row(
        programs,
        python,
        f"{language}: from a thread to an asyncio loop",
        "toloop {}",
        peers,
        1_000,
        beside="call_soon_threadsafe",
        target=3.0 if python == "python" else None,
    )
    for percentage, target in ((50, None), (99, 1.0 if python == "python" else None)):
        words = f"toloopandback {{}} {percentage}"
        name = f"{language}: from a thread to an asyncio loop and back, p{percentage}"
        yield _row(programs, python, name, words, peers, 100, beside="call_soon_threadsafe", target=target)
