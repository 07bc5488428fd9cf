"""The hand-over suite: hand-overs that break one rule each are found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.testing import Disagreement, handover_suite
from tests.testing.unshrunk import UNSHRUNK

BOUNDS = (3, 10)


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


WRONG: dict[type[Handover], set[str]] = {
    LastInFirstOut: {"take_all", "take_all while another thread waits in put"},
    CloseForgets: {"close"},
    CloseGivesAgain: {"close"},
    FinishDropsWhatWaits: {"len"},
    FailureBeforeTheItems: {"try_take", "take"},
    FailsWithoutTheFailure: {"take", "try_take", "take_all", "take while another thread waits in take"},
    BytesNotCounted: {"try_put", "put", "statistics"},
    TooLargeForAnEmptyOne: {"try_put"},
    RefusesQuietlyAfterTheEnd: {"try_put"},
    ForgetsAWakeUp: {"arm_wakeup_consumer", "wake-ups"},
    ArmsTheProducerAlways: {"arm_wakeup_producer"},
}


def run(make: Callable[[], Any], **options: Any) -> None:
    handover_suite(make, max_items=BOUNDS[0], max_bytes=BOUNDS[1], settings=UNSHRUNK, **options)().runTest()


@pytest.mark.contract
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_handover_is_found_out_by_the_operation_that_is_wrong(wrong: type[Handover]) -> None:
    with pytest.raises(Disagreement) as found:
        # A wake-up that was forgotten is found without waiting for a take that sleeps.
        run(lambda: wrong(*BOUNDS), without={"take"} if wrong is ForgetsAWakeUp else set())
    assert found.value.operation in WRONG[wrong]


def test_a_bound_that_is_not_kept_is_found() -> None:
    with pytest.raises(Disagreement) as found:
        run(lambda: Handover(BOUNDS[0] + 1, BOUNDS[1]))
    assert "put" in found.value.operation
