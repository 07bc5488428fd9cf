"""The suites of `pillarbox.testing`, pointed at the kernel: a deterministic choice of random steps.

`python -m fuzz` does the same with new steps at each run, for as long as it is let, and looks for the
shortest steps that show a mistake; here the first steps are enough.
"""

import pytest
from hypothesis import HealthCheck, Phase, settings

from pillarbox.kernel import BACKENDS, Handover, OrderedQueue, TaskMailbox, UnorderedQueue
from pillarbox.testing.suites import handover_suite, mailbox_suite, queue_suite
from tests.search import examples

MODEST = settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(120),
    stateful_step_count=40,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.contract(
    "Random operations on a mailbox answer as its model does.",
    convicts=["large_batch_stops_short"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mailbox_keeps_its_contract(backend: str) -> None:
    def make() -> TaskMailbox:
        return TaskMailbox(urgent_burst=2, backend=backend)

    how = settings(MODEST, max_examples=examples(100))
    mailbox_suite(make, urgent_burst=2, settings=how)().runTest()


@pytest.mark.contract("Random operations on a result queue answer as its model does.")
@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("owner_completes", [False, True])
@pytest.mark.parametrize("kind", [OrderedQueue, UnorderedQueue])
def test_the_queues_keep_their_contract(
    kind: type[OrderedQueue] | type[UnorderedQueue], owner_completes: bool, capacity: int
) -> None:
    def make() -> OrderedQueue | UnorderedQueue:
        return kind(capacity, owner_completes=owner_completes)

    queue_suite(
        make,
        capacity=capacity,
        ordered=kind is OrderedQueue,
        owner_completes=owner_completes,
        settings=MODEST,
    )().runTest()


@pytest.mark.contract(
    "Random operations on a hand-over answer as its model does.", convicts=["handover_put_without_wake"]
)
@pytest.mark.parametrize(("max_items", "max_bytes"), [(1, None), (3, 10)])
def test_the_handover_keeps_its_contract(max_items: int, max_bytes: int | None) -> None:
    def make() -> Handover:
        return Handover(max_items, max_bytes)

    handover_suite(make, max_items=max_items, max_bytes=max_bytes, settings=MODEST)().runTest()
