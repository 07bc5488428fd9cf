"""Of the jobs of one run in an object store one holds it, by a record that is written on a condition only."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pillarbox.ledger import LedgerError
from pillarbox.ledger.errors import LedgerHeldError
from pillarbox.ledger.objects.conditional import ConditionalStore, LocalStore, Version, conditional_store
from pillarbox.ledger.objects.holder import (
    BELIEF_S,
    ELSEWHERE,
    EXPIRY_S,
    HOLDER,
    RENEWAL_INTERVAL_S,
    REST_S,
    WATCH_INTERVAL_S,
    Holder,
    ProcessId,
    RunHold,
)
from tests.servers import fixtures
from tests.servers.s3_server import S3Server

pytest.importorskip("pyarrow.fs")
RUN = "run='nightly', uid='embed'"

server = fixtures.s3


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.server)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ConditionalStore:
    if request.param == "folder":
        return LocalStore(str(tmp_path / "run"))
    s3: S3Server = request.getfixturevalue("server")
    return conditional_store(s3.store(), f"{s3.bucket()}/calls/run=nightly")


class Time:
    """A clock that goes on while somebody pauses; `meanwhile` is what others do then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[], None] = lambda: None

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def hold(self, store: ConditionalStore, holder: Holder) -> RunHold:
        return RunHold(store, RUN, holder, clock=lambda: self.now, pause=self.pause)


class Between:
    """A store in which something happens before a write arrives, or its answer is lost."""

    def __init__(self, store: ConditionalStore) -> None:
        self.store = store
        self.before: Callable[[], None] | None = None
        self.loses_answers = self.is_away = False
        self.writes = 0
        self.read = store.read

    def write(self, name: str, content: bytes, expected: Version | None) -> Version | None:
        self.writes += 1
        if self.is_away:
            raise LedgerError("no store")
        before, self.before = self.before, None
        if before is not None:
            before()
        written = self.store.write(name, content, expected)
        if self.loses_answers:
            raise LedgerError("no answer")
        return written


def job(name: str, host: str = "") -> Holder:
    """A job of another machine, whose processes nobody here can look at."""
    process = ProcessId(7, "1", f"kernel of {name}")
    return Holder(f"app-{name}", f"plan-{name}", host or f"host-{name}", process, "someone", "embed.py", name)


def holder_in(store: ConditionalStore) -> Holder:
    version = store.read(HOLDER)
    assert version is not None
    return Holder.parse(version.content)


@pytest.mark.contract(convicts=["holder_taken_at_once", "holder_never_renews"])
def test_a_second_job_of_a_run_is_told_who_holds_it_and_since_when(store: ConditionalStore) -> None:
    time = Time()
    first, second = time.hold(store, job("a")), time.hold(store, job("b"))
    first.acquire()
    time.meanwhile = first.renew
    begin = time.now
    with pytest.raises(LedgerHeldError) as caught:
        second.acquire()
    # It is told when the holder is known to live: by its next renewal.
    assert time.now - begin <= 2 * RENEWAL_INTERVAL_S
    text = str(caught.value)
    record = holder_in(store)
    assert text.startswith(
        f"{RUN} is held by another job: embed.py of someone on host-a (process 7), since 20"
    )
    assert f"since {record.since}, last renewed {record.renewed}. Wait for its end" in text
    first.check()
    first.free()
    second.acquire()
    second.check()


@pytest.mark.contract
def test_a_run_whose_holder_gives_no_sign_is_taken_over(store: ConditionalStore) -> None:
    time = Time()
    first, second = time.hold(store, job("a")), time.hold(store, job("b"))
    first.acquire()
    begin = time.now
    second.acquire()
    assert EXPIRY_S <= time.now - begin <= EXPIRY_S + WATCH_INTERVAL_S
    assert holder_in(store).host == "host-b"
    second.check()


@pytest.mark.contract(convicts=["holder_believes_for_ever"])
def test_a_holder_that_was_stopped_learns_that_it_has_lost_the_run_before_its_next_call(
    store: ConditionalStore,
) -> None:
    time = Time()
    first, second = time.hold(store, job("a")), time.hold(store, job("b"))
    first.acquire()
    second.acquire()
    with pytest.raises(
        LedgerHeldError, match="is not this job's any more; another job has taken it over: embed"
    ):
        first.check()
    second.free()
    with pytest.raises(LedgerHeldError, match="another job has taken it over"):
        first.check()


@pytest.mark.contract(convicts=["holder_forgets_to_look"])
def test_a_holder_that_was_stopped_and_whose_run_nobody_has_taken_goes_on(store: ConditionalStore) -> None:
    time = Time()
    first = time.hold(store, job("a"))
    first.acquire()
    time.now += 10 * EXPIRY_S
    first.check()
    assert first.failure is None


@pytest.mark.contract(convicts=["holder_written_unasked"])
def test_of_two_jobs_that_find_a_run_free_one_has_it(store: ConditionalStore) -> None:
    time = Time()
    between = Between(store)
    first, second = time.hold(between, job("a")), time.hold(store, job("b"))
    between.before = second.acquire
    time.meanwhile = second.renew
    with pytest.raises(LedgerHeldError, match="host-b"):
        first.acquire()
    second.check()


@pytest.mark.contract
def test_of_two_jobs_that_take_a_run_over_one_has_it(store: ConditionalStore) -> None:
    time = Time()
    between = Between(store)
    time.hold(store, job("a")).acquire()
    first, second = time.hold(between, job("b")), time.hold(store, job("c"))
    between.before = second.acquire
    with pytest.raises(LedgerHeldError, match="host-c"):
        first.acquire()
    second.check()
    assert holder_in(store).host == "host-c"


@pytest.mark.contract
def test_a_renewal_that_arrives_late_takes_nothing_from_the_next_holder(store: ConditionalStore) -> None:
    time = Time()
    between = Between(store)
    first, second = time.hold(between, job("a")), time.hold(store, job("b"))
    first.acquire()
    between.before = second.acquire
    first.renew()
    assert holder_in(store).host == "host-b"
    second.check()
    with pytest.raises(LedgerHeldError, match="host-b"):
        first.check()


@pytest.mark.contract(convicts=["holder_frees_others"])
def test_the_end_of_a_job_that_has_lost_its_run_frees_nobody_elses(store: ConditionalStore) -> None:
    time = Time()
    between = Between(store)
    first, second = time.hold(between, job("a")), time.hold(store, job("b"))
    first.acquire()
    between.before = second.acquire
    for _ in range(2):
        first.free()
        assert holder_in(store).phase == "calling"
    second.check()


@pytest.mark.contract(convicts=["holder_believes_from_the_answer"])
def test_the_time_of_a_renewal_counts_from_when_it_was_sent(store: ConditionalStore) -> None:
    time = Time()
    between = Between(store)
    first = time.hold(between, job("a"))

    def wait() -> None:
        time.now += BELIEF_S

    between.before = wait
    first.acquire()
    writes = between.writes
    first.check()
    assert between.writes == writes + 1


@pytest.mark.contract(convicts=["holder_believes_from_a_look"])
def test_tasks_of_one_job_share_its_record_and_one_renews_it_for_all(store: ConditionalStore) -> None:
    time = Time()
    stores = [Between(store), Between(store)]
    first, second = (time.hold(each, job("a")) for each in stores)
    first.acquire()
    second.acquire()
    begin = time.now
    time.now += RENEWAL_INTERVAL_S
    written = [each.writes for each in stores]
    second.renew()
    first.renew()
    # The one has written; the other has seen that, and need not.
    assert [each.writes for each in stores] == [written[0], written[1] + 1]
    # It was written after the other's look before this one, which may have been long ago.
    time.now = begin + BELIEF_S - 1
    first.check()
    assert stores[0].writes == written[0]
    time.now = begin + BELIEF_S + 1
    first.check()
    assert stores[0].writes == written[0] + 1
    assert holder_in(store).host == "host-a"


def test_many_tasks_that_begin_at_a_time_all_join(store: ConditionalStore) -> None:
    time = Time()
    between = Between(store)
    late = time.hold(between, job("a"))
    between.before = time.hold(store, job("a")).acquire
    late.acquire()
    late.check()
    # It has seen the other's record appear, and need not write one.
    assert between.writes == 1


@pytest.mark.contract
def test_a_holder_whose_answers_are_lost_looks_whether_it_has_written(store: ConditionalStore) -> None:
    time = Time()
    between = Between(store)
    hold = time.hold(between, job("a"))
    hold.acquire()
    between.loses_answers = True
    time.now += RENEWAL_INTERVAL_S
    with pytest.raises(LedgerError, match="no answer"):
        hold.renew()
    time.now += BELIEF_S - RENEWAL_INTERVAL_S - 1
    hold.renew()
    assert hold.failure is None
    hold.check()
    # Where nothing can be written for so long, no more calls begin.
    between.is_away = True
    time.now += 2 * BELIEF_S
    with pytest.raises(
        LedgerError, match=f"could not be renewed for {BELIEF_S:g} s, .*no more calls are made: no store"
    ):
        hold.check()


@pytest.mark.contract
@pytest.mark.parametrize("content", [b'{"format": 2, "who": ["x"]}', b"\xff", b"[]", b'{"format": 1}'])
def test_a_record_that_is_not_understood_holds_the_run_while_it_changes(
    store: ConditionalStore, content: bytes
) -> None:
    time = Time()
    written = store.write(HOLDER, content, None)
    assert written is not None

    def change() -> None:
        nonlocal written
        written = store.write(HOLDER, content + b" " * round(time.now * 4 % 1000), written)

    time.meanwhile = change
    second = time.hold(store, job("b"))
    with pytest.raises(LedgerHeldError, match="is held by another job: a "):
        second.acquire()
    time.meanwhile = lambda: None
    begin = time.now
    second.acquire()
    assert time.now - begin >= EXPIRY_S


@pytest.mark.contract
def test_what_is_unknown_in_a_record_is_passed_over(store: ConditionalStore) -> None:
    time = Time()
    about = json.loads(job("a").content())
    assert store.write(HOLDER, json.dumps({**about, "later": [1]}).encode(), None) is not None
    assert holder_in(store).host == "host-a"
    second = time.hold(store, job("b"))
    second.acquire()
    second.check()


@pytest.mark.contract
def test_a_record_that_has_expired_ends_the_job(tmp_path: Path) -> None:
    time = Time()
    first = time.hold(LocalStore(str(tmp_path)), job("a"))
    first.acquire()
    (file,) = tmp_path.iterdir()
    file.unlink()
    first.renew()
    with pytest.raises(LedgerHeldError, match="its record was deleted, as when a run expires"):
        first.check()


def action_of(first: Holder, plan: str, action: str, phase: str = "calling") -> Holder:
    return dataclasses.replace(first, plan=plan, action=action, phase=phase, stage=3)


@pytest.mark.contract
def test_two_plans_of_one_action_share_a_run(store: ConditionalStore) -> None:
    time = Time()
    one, other = (time.hold(store, action_of(job("a"), plan, "5")) for plan in ("p", "q"))
    one.acquire()
    other.acquire()
    one.renew()
    other.renew()
    one.check()
    other.check()


@pytest.mark.contract
def test_two_actions_of_one_application_that_call_at_a_time_are_two_jobs(store: ConditionalStore) -> None:
    time = Time()
    one = time.hold(store, action_of(job("a"), "p", "5"))
    other = time.hold(store, action_of(job("a"), "q", "6"))
    one.acquire()
    time.meanwhile = one.renew
    with pytest.raises(LedgerHeldError, match="host-a"):
        other.acquire()
    # One after the other they are not: who has ended renews nothing.
    time.meanwhile = lambda: None
    begin = time.now
    other.acquire()
    assert REST_S <= time.now - begin < EXPIRY_S


@pytest.mark.contract
def test_a_driver_hands_what_it_has_planned_on_to_its_tasks(store: ConditionalStore) -> None:
    time = Time()
    planned = time.hold(store, action_of(job("a"), "p", "", "planned"))
    planned.acquire()
    planned.renew()
    assert not planned.is_handed_on
    task = time.hold(store, action_of(job("a"), "p", "5"))
    task.acquire()
    planned.renew()
    assert planned.is_handed_on
    # Another plan of the application takes nothing from a task that calls.
    time.hold(store, action_of(job("a"), "q", "", "planned")).acquire(lambda other: True)
    task.renew()
    task.check()
    assert holder_in(store).phase == "calling"


@pytest.mark.contract(convicts=["holder_refuses_the_dead"])
@pytest.mark.parametrize("started", ["1", "of no process"])
def test_a_process_of_this_machine_that_is_dead_is_not_waited_for(
    store: ConditionalStore, started: str
) -> None:
    own = ProcessId.own()
    assert own.is_running() is True
    time = Time()
    dead = dataclasses.replace(job("a"), process=own._replace(started=started))
    time.hold(store, dead).acquire()
    begin = time.now
    time.hold(store, job("b")).acquire()
    assert time.now == begin


@pytest.mark.contract
def test_a_process_of_this_machine_that_calls_for_itself_is_known_to_hold_its_run(
    store: ConditionalStore,
) -> None:
    time = Time()
    live = dataclasses.replace(job("a"), process=ProcessId.own())
    first = time.hold(store, live)
    first.acquire()
    begin = time.now
    with pytest.raises(LedgerHeldError, match="host-a"):
        time.hold(store, job("b")).acquire()
    assert time.now == begin
    # A driver lives on when its tasks have ended.
    first.free()
    time.hold(store, dataclasses.replace(live, stage=ELSEWHERE)).acquire()
    time.hold(store, job("b")).acquire()
    assert time.now - begin >= EXPIRY_S


@pytest.mark.contract
def test_tasks_that_outlive_their_driver_are_waited_for(store: ConditionalStore) -> None:
    time = Time()
    dead = dataclasses.replace(job("a"), process=ProcessId.own()._replace(started="1"), stage=4)
    tasks = time.hold(store, dead)
    tasks.acquire()
    last = time.now + 5 * RENEWAL_INTERVAL_S

    def renew() -> None:
        if time.now < last:
            tasks.renew()

    time.meanwhile = renew
    time.hold(store, job("b")).acquire()
    assert last + REST_S - RENEWAL_INTERVAL_S <= time.now < last + EXPIRY_S


def test_a_record_has_no_more_than_a_line_and_nothing_that_a_terminal_obeys() -> None:
    holder = dataclasses.replace(job("a"), program="\x1b[31m\n" + "x" * 5000)
    text = str(Holder.parse(holder.content()))
    assert text.isprintable()
    assert len(text) < 700
