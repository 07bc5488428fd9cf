"""The threads of an enumerator: what is found is taken up in one step, whatever goes wrong in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from pillarbox.sources import Split
from pillarbox.sources.enumerating import Checkpoint, DiscoveryPace, EnumeratorThread, Waiting
from pillarbox.sources.split_coordinator import SplitCoordinator
from tests.sources.unit.found import LONG, Findable, Finder, World
from tests.threads import begun


def running(
    world: World, interval: float | None = None, **more: Any
) -> closing[EnumeratorThread[Split, int]]:
    return closing(EnumeratorThread(Findable(world, interval), SplitCoordinator[Split](4), **more).start())


def names(thread: EnumeratorThread[Split, int]) -> list[str]:
    return thread.submit(lambda: [each.split.split_id for each in thread.pending.waiting()]).result(LONG)


def known(thread: EnumeratorThread[Split, int]) -> int:
    return thread.submit(lambda: thread.enumerator.checkpoint).result(LONG)


def exhausted(thread: EnumeratorThread[Split, int]) -> bool:
    return thread.submit(lambda: thread.exhausted).result(LONG)


def take(thread: EnumeratorThread[Split, int], count: int) -> None:
    def taken() -> None:
        for each in thread.pending.waiting()[:count]:
            thread.pending.remove(each.split.split_id)

    thread.submit(taken).result(LONG)


def test_each_has_a_thread_of_its_own_and_both_end() -> None:
    world = World(3)
    with running(world) as thread:
        thread.caught_up().result(LONG)
        assert names(thread) == ["s0", "s1", "s2"]
        world.say("here")
        assert world.threads["discover"] == {"pillarbox-discover"}
    assert world.threads["close"] == {"pillarbox-enumerator"}
    assert begun("pillarbox-discover") == begun("pillarbox-enumerator") == []
    thread.close()
    assert world.heard("close") == [None]


def test_it_discovers_until_nothing_is_found_and_says_that_no_more_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[SplitCoordinator[Any]] = []
    monkeypatch.setattr(SplitCoordinator, "serve", lambda coordinator: served.append(coordinator))
    world = World(25)
    with running(world, pace=DiscoveryPace(10)) as thread:
        thread.caught_up().result(LONG)
        # While so many wait nobody looks for others: what a checkpoint has to hold is bounded.
        assert len(names(thread)) == 10 == known(thread)
        take(thread, 10)
        thread.caught_up().result(LONG)
        take(thread, 10)
        thread.caught_up().result(LONG)
        assert names(thread) == [f"s{number}" for number in range(20, 25)]
        assert exhausted(thread)
        assert world.heard("discover") == [0, 10, 20, 25]
        assert len(served) == 4


@pytest.mark.contract
def test_what_is_new_is_found_while_it_runs_and_the_end_never_comes() -> None:
    world = World(1)
    with running(world, 0.01) as thread:
        world.until(lambda: world.calls >= 3)
        assert names(thread) == ["s0"]
        world.add(2)
        calls = world.calls
        world.until(lambda: world.calls >= calls + 3)
        assert names(thread) == ["s0", "s1", "s2"]
        assert not exhausted(thread)


def test_between_two_discoveries_the_interval_passes() -> None:
    world = World(1)
    with running(world, 1000.0) as thread:
        thread.caught_up().result(LONG)
        # Something was found, so another look followed; now it is quiet, however often somebody needs more.
        for _ in range(5):
            thread.submit(lambda: None).result(LONG)
        thread.caught_up().result(LONG)
        assert world.calls == 2


def test_caught_up_waits_for_the_discovery_that_runs() -> None:
    world = World(1)
    world.blocked = True
    with running(world) as thread:
        world.until(lambda: world.calls == 1)
        waiting = thread.caught_up()
        assert names(thread) == []
        assert not waiting.done()
        world.unblock()
        waiting.result(LONG)
        assert names(thread) == ["s0"]


def test_a_first_discovery_that_fails_ends_it_and_everybody_is_told() -> None:
    world = World(1)
    world.failures[1] = OSError("no such bucket")
    failed: list[BaseException] = []
    over = threading.Event()

    def told(error: BaseException) -> None:
        failed.append(error)
        over.set()

    with running(world, failed=told) as thread:
        assert over.wait(LONG)
        thread._thread.join(LONG)
        with pytest.raises(OSError, match="no such bucket"):
            thread.call(lambda: None)
        with pytest.raises(OSError, match="no such bucket"):
            thread.caught_up().result(LONG)
        assert not thread.execute(lambda: None)
        assert thread.failure is failed[0]
    assert world.heard("close") == [None]
    assert len(failed) == 1


@pytest.mark.contract
def test_it_closes_the_enumerator_and_ends_though_who_is_told_of_its_failure_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(1)
    world.failures[1] = OSError("no such bucket")

    def told(error: BaseException) -> None:
        raise ConnectionError("nobody listens")

    with running(world, failed=told) as thread:
        thread._thread.join(LONG)
        with pytest.raises(OSError, match="no such bucket"):
            thread.caught_up().result(LONG)
    assert world.heard("close") == [None]
    assert "nobody listens" in caplog.text


@pytest.mark.contract
def test_a_later_discovery_that_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World(5)
    world.failures[2] = OSError("the service is away")
    world.failures[3] = OSError("the service is away")
    pace = DiscoveryPace(3, first_retry=0.01)
    with caplog.at_level(logging.WARNING), running(world, pace=pace) as thread:
        thread.caught_up().result(LONG)
        take(thread, 3)
        world.until(lambda: world.calls >= 5)
        thread.caught_up().result(LONG)
        assert names(thread) == ["s3", "s4"]
        assert exhausted(thread)
    assert caplog.text.count("could not discover") == 2


def test_after_a_restart_the_first_discovery_may_fail_as_well(caplog: pytest.LogCaptureFixture) -> None:
    world = World(5)
    world.failures[1] = OSError("the service is away")
    restored = Checkpoint(4, [Waiting(Split("s1", 5, 10), 2)])
    pace = DiscoveryPace(first_retry=0.01)
    with caplog.at_level(logging.WARNING), running(world, restored=restored, pace=pace) as thread:
        world.until(lambda: world.calls >= 3)
        thread.caught_up().result(LONG)
        waiting = thread.submit(thread.pending.waiting).result(LONG)
        assert waiting == [Waiting(Split("s1", 5, 10), 2), Waiting(Split("s4", 0, 10))]
        assert known(thread) == 5


def test_what_the_enumerator_has_learnt_meanwhile_is_not_overwritten() -> None:
    world = World(5)
    world.blocked = True
    with running(world) as thread:
        world.until(lambda: world.calls == 1)

        def learn() -> None:
            thread.enumerator.checkpoint = 3

        thread.submit(learn).result(LONG)
        world.unblock()
        thread.caught_up().result(LONG)
        # What was found from 0 on is dropped, and looked for again from what is known now.
        assert names(thread) == ["s3", "s4"]
        assert world.heard("discover") == [0, 3, 5]


KNOWS_OTHER = 100


def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The enumerator knows something else when it has heard what is finished."""

    def forget(finder: Finder, splits: Sequence[Split]) -> None:
        finder.world.say("finished", [split.split_id for split in splits])
        finder.checkpoint = KNOWS_OTHER

    monkeypatch.setattr(Finder, "handle_finished", forget)


def test_what_has_finished_is_told_behind_a_discovery_so_that_this_is_not_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgetting(monkeypatch)
    world = World(1)
    with running(world, interval=0.01) as thread:
        thread.caught_up().result(LONG)
        take(thread, 1)
        with world.changed:
            world.blocked = True
            calls = world.calls
        world.until(lambda: world.calls > calls)
        world.count = 2
        thread.submit(thread.finished, [Split("s0", 0, 10)]).result(LONG)
        assert world.heard("finished") == []
        world.unblock()
        world.until(lambda: world.calls > calls + 1)
        # What was found by the discovery that knew of it is there.
        assert names(thread) == ["s1"]
        assert world.heard("finished") == [["s0"]]
        assert world.heard("discover")[calls : calls + 2] == [1, KNOWS_OTHER]


def test_what_has_finished_is_told_at_once_where_the_next_discovery_has_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgetting(monkeypatch)
    world = World(2)
    with running(world, interval=3600.0) as thread:
        thread.caught_up().result(LONG)
        take(thread, 2)
        thread.submit(thread.finished, [Split("s1", 0, 10)]).result(LONG)
        assert world.heard("finished") == [["s1"]]
        assert known(thread) == KNOWS_OTHER
        # And that begins with what is known now.
        thread._orders.put((0.0, partial(thread._discover, 1)))
        world.until(lambda: KNOWS_OTHER in [what for kind, what in world.told if kind == "discover"])


def test_a_split_that_is_found_twice_ends_it_and_is_named() -> None:
    world = World(2)
    world.make = lambda number: Split("same", 0, 10)
    failed: Future[BaseException] = Future()
    with running(world, failed=failed.set_result):
        assert "Finder.discover found split_id='same' twice: each split must have an id of its own" in str(
            failed.result(LONG)
        )


def test_what_was_read_to_its_end_comes_again_where_the_enumerator_knows_it_no_more() -> None:
    world = World(1)
    with running(world, on_demand=True) as thread:

        def look(forgets: bool) -> list[str]:
            if forgets:
                thread.enumerator.checkpoint = 0
            thread.forget(["s0"])
            thread._due = 0.0
            thread.look(9)
            return [each.split.split_id for each in thread.pending.take_all()]

        for forgets in (False, True, True):
            thread.call(look, forgets)
            thread.caught_up().result(LONG)
            assert names(thread) == ["s0"]
        assert world.heard("discover") == [0, 0, 0]


def test_more_splits_than_asked_for_are_refused() -> None:
    class Greedy(Finder):
        def discover(self, checkpoint: int, most: int) -> Any:
            return [Split(f"s{number}") for number in range(most + 1)], 1

    class Source(Findable):
        def restore_enumerator(self, context: Any, checkpoint: int) -> Finder:
            return Greedy(context, checkpoint, self.world)

    failed: Future[BaseException] = Future()
    thread = EnumeratorThread(
        Source(World()), SplitCoordinator[Split](4), failed=failed.set_result, pace=DiscoveryPace(5)
    )
    with closing(thread.start()):
        assert "6 splits: at most most=5" in str(failed.result(LONG))


def test_what_making_the_enumerator_raises_start_raises() -> None:
    thread = EnumeratorThread(Findable(World(), broken=True), SplitCoordinator[Split](4))
    with pytest.raises(OSError, match="no such service"):
        thread.start()
    thread.close()


def test_a_discovery_that_does_not_end_is_left_behind_and_said(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    world.blocked = True
    pace = DiscoveryPace(stop_timeout=0.1)
    with caplog.at_level(logging.WARNING), running(world, pace=pace) as thread:
        world.until(lambda: world.calls == 1)
        waiting = thread.caught_up()
    assert "still discovers" in caplog.text
    assert isinstance(waiting.exception(LONG), RuntimeError)
    assert world.heard("close") == [None]
    world.unblock()
    thread._discoverer.join(LONG)


def test_who_waits_when_it_ends_is_told() -> None:
    world = World(1)
    with running(world) as thread:
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda: 1 / 0)
        # The answer would have come later.
        waiting = thread.submit(Future[None])
        thread.caught_up().result(LONG)
    for each in (waiting, thread.submit(Future[None]), thread.caught_up()):
        with pytest.raises(RuntimeError, match="has been closed"):
            each.result(LONG)
    assert not thread.execute(world.say, "late")
