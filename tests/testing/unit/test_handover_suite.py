"""The hand-over suite: hand-overs that break one rule each are found out by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.testing.suites import Disagreement, handover_suite
from tests.testing.unit.unshrunk import DEFAULT_SIZES, UNSHRUNK

BOUNDS = (4, 10)


class LastInFirstOut(Handover):
    def take_all(self) -> list[Any]:
        return super().take_all()[::-1]


class CloseForgets(Handover):
    def close(self) -> list[Any]:
        return super().close()[1:]


class CloseGivesAgain(Handover):
    def close(self) -> list[Any]:
        left = super().close()
        self.again = getattr(self, "again", []) + left
        return self.again


class FinishDropsWhatWaits(Handover):
    def finish(self) -> bool:
        first = super().finish()
        if first and len(self):
            self.take_all()
        return first


class FailureBeforeTheItems(Handover):
    failure: BaseException | None = None

    def fail(self, exception: BaseException) -> bool:
        self.failure = exception
        return super().fail(exception)

    def try_take(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().try_take()


class FailsWithoutTheFailure(Handover):
    def fail(self, exception: BaseException) -> bool:
        return super().finish()


class BytesNotCounted(Handover):
    def try_put(self, item: Any, nbytes: int = 0) -> bool:
        return super().try_put(item, 0)


class TooLargeForAnEmptyOne(Handover):
    def try_put(self, item: Any, nbytes: int = 0) -> bool:
        return nbytes <= BOUNDS[1] and super().try_put(item, nbytes)


class RefusesQuietlyAfterTheEnd(Handover):
    def try_put(self, item: Any, nbytes: int = 0) -> bool:
        try:
            return super().try_put(item, nbytes)
        except HandoverClosedError:
            return False


class ForgetsAWakeUp(Handover):
    def wake_up(self) -> None:
        if self.arm_wakeup_consumer(lambda: None):
            super().wake_up()


class ArmsTheProducerAlways(Handover):
    def arm_wakeup_producer(self, callback: Callable[[], object], nbytes: int = 0) -> bool:
        super().arm_wakeup_producer(callback, nbytes)
        return True


class CloseLeavesTheProducerAsleep(Handover):
    shut = False

    def arm_wakeup_producer(self, callback: Callable[[], object], nbytes: int = 0) -> bool:
        return super().arm_wakeup_producer(lambda: self.shut or callback(), nbytes)

    def close(self) -> list[Any]:
        self.shut = True
        return super().close()


class CloseCallsTheConsumer(Handover):
    armed: Callable[[], object] | None = None

    def arm_wakeup_consumer(self, callback: Callable[[], object]) -> bool:
        def once() -> object:
            self.armed = None
            return callback()

        armed = super().arm_wakeup_consumer(once)
        self.armed = callback if armed else self.armed
        return armed

    def close(self) -> list[Any]:
        left = super().close()
        if self.armed is not None:
            self.armed()
            self.armed = None
        return left


class NobodyWakesATake(Handover):
    def take(self, timeout: float | None = None) -> Any:
        item = self.try_take()
        if item is None and timeout:
            threading.Event().wait(timeout)
        return item or self.try_take()


class NobodyWakesAPut(Handover):
    def put(self, item: Any, nbytes: int = 0, timeout: float | None = None) -> bool:
        if super().put(item, nbytes, 0):
            return True
        threading.Event().wait(timeout)
        return super().put(item, nbytes, 0)


class PutDoesNotWait(Handover):
    def put(self, item: Any, nbytes: int = 0, timeout: float | None = None) -> bool:
        return super().put(item, nbytes, 0)


class LargeTakeAllLosesItsNewest(Handover):
    def take_all(self) -> list[Any]:
        items = super().take_all()
        return items[:-1] if len(items) > 3 else items


AWAITS = {
    waits: {f"{waits} that need not wait", *(f"{waits} while another thread does {act}" for act in ends)}
    for waits, ends in {
        "take": ("put", "wake_up", "finish", "fail", "close"),
        "put": ("take", "take_all", "finish", "fail", "close"),
    }.items()
}
WRONG: dict[type[Handover], set[str]] = {
    LastInFirstOut: {"take_all"},
    CloseForgets: {"close"},
    CloseGivesAgain: {"close"},
    FinishDropsWhatWaits: {"len"},
    FailureBeforeTheItems: {"try_take", "take"},
    FailsWithoutTheFailure: {"take", "try_take", "take_all"},
    BytesNotCounted: {"try_put", "put", "statistics"},
    TooLargeForAnEmptyOne: {"try_put"},
    RefusesQuietlyAfterTheEnd: {"try_put"},
    ForgetsAWakeUp: {"arm_wakeup_consumer", "wake-ups", *AWAITS["take"]},
    ArmsTheProducerAlways: {"arm_wakeup_producer"},
    CloseLeavesTheProducerAsleep: {"wake-ups"},
    CloseCallsTheConsumer: {"wake-ups"},
    NobodyWakesATake: AWAITS["take"],
    NobodyWakesAPut: AWAITS["put"],
    PutDoesNotWait: {"put"},
    LargeTakeAllLosesItsNewest: {"take_all"},
}
# Found late, or by waiting: a second or two each.
LATE = {CloseForgets, CloseGivesAgain, CloseLeavesTheProducerAsleep, FailureBeforeTheItems, NobodyWakesATake}


def run(make: Callable[[], Any], how: settings = UNSHRUNK) -> None:
    handover_suite(make, max_items=BOUNDS[0], max_bytes=BOUNDS[1], settings=how)().runTest()


@pytest.mark.contract
@pytest.mark.parametrize(
    "wrong",
    [pytest.param(wrong, marks=pytest.mark.slow) if wrong in LATE else wrong for wrong in WRONG],
    ids=[wrong.__name__ for wrong in WRONG],
)
def test_a_wrong_handover_is_found_out_by_the_operation_that_is_wrong(wrong: type[Handover]) -> None:
    with pytest.raises(Disagreement) as found:
        run(lambda: wrong(*BOUNDS))
    assert found.value.operation in WRONG[wrong]


@pytest.mark.contract
@pytest.mark.parametrize("wrong", [NobodyWakesATake, NobodyWakesAPut, LargeTakeAllLosesItsNewest])
def test_default_sizes_find_a_wait_that_nobody_ends_and_a_large_batch_without_its_newest_item(
    wrong: type[Handover],
) -> None:
    with pytest.raises(Disagreement):
        run(lambda: wrong(*BOUNDS), DEFAULT_SIZES)


def test_a_bound_that_is_not_kept_is_found() -> None:
    with pytest.raises(Disagreement) as found:
        run(lambda: Handover(BOUNDS[0] + 1, BOUNDS[1]))
    assert found.value.operation in {"put", "try_put", "arm_wakeup_producer"}
