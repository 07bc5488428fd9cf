"""The kernel's headers under a scheduler that decides, at each atomic operation, which thread goes on."""

import re

import pytest

from spec.native import compiled, plant, run

SCHEDULED = "-DPILLARBOX_SCHED"
PREEMPTIONS, RANDOM, SEED = "2", "2000", "1"


def scenarios(program: str) -> list[str]:
    return run(compiled(program, SCHEDULED, planted=True), "list").stdout.split()


@pytest.mark.contract(
    "In every schedule with two preemptions nothing is lost, nothing comes twice, nobody is left asleep.",
    convicts=[
        "check_then_push",
        "wake_before_push",
        "wake_only_when_empty",
        "park_without_look",
        "woken_once",
        "woken_too_early",
        "late_signal",
        "counts_torn",
        "quiesce_without_wake",
        "armed_is_enough",
        "arm_disowns",
        "mutex_park_without_look",
        "mutex_quiesce_without_wake",
        "mutex_push_unlocked",
        "ended_by_a_later_look",
        "clear_without_waiting",
        "running_beyond_size",
        "taken_in_two_steps",
        "handover_put_without_wake",
        "take_without_wake",
        "finish_without_wake",
        "close_without_wake",
        "collector_taken_twice",
    ],
)
@pytest.mark.parametrize(
    ("program", "only"),
    [
        pytest.param("mailbox_schedules", [], marks=pytest.mark.slow),
        pytest.param("queue_schedules", [], marks=pytest.mark.slow),
        pytest.param("handover_schedules", [], marks=pytest.mark.slow),
        ("handover_schedules", ["woken-up"]),
        pytest.param("collector_schedules", [], marks=pytest.mark.thorough),
    ],
)
def test_every_schedule_with_two_preemptions_keeps_the_promises(program: str, only: list[str]) -> None:
    done = run(compiled(program, SCHEDULED, planted=True), "all", PREEMPTIONS, RANDOM, SEED, *only)
    assert done.returncode == 0, done.stdout
    counts = {name: int(count) for name, count in re.findall(r"(\S+) (\d+) schedules: ok", done.stdout)}
    assert sorted(counts) == (only or sorted(scenarios(program)))
    # More than the random ones: the others were tried too.
    assert all(count > int(RANDOM) + 10 for count in counts.values()), counts


@pytest.mark.contract(
    "In every schedule with two stale reads nothing is lost, nobody is left asleep, and counts agree.",
    convicts=["weak_park", "weak_counts"],
)
@pytest.mark.parametrize(
    ("program", "only"),
    [
        pytest.param("mailbox_schedules", [], marks=pytest.mark.slow),
        pytest.param("queue_schedules", [], marks=pytest.mark.slow),
        ("handover_schedules", ["woken-up"]),
        pytest.param("collector_schedules", [], marks=pytest.mark.thorough),
    ],
)
def test_every_schedule_with_two_stale_reads_keeps_the_promises(program: str, only: list[str]) -> None:
    done = run(compiled(program, SCHEDULED, planted=True), "weak", "1", "2", RANDOM, SEED, *only)
    assert done.returncode == 0, done.stdout
    counts = {name: int(count) for name, count in re.findall(r"(\S+) (\d+) schedules: ok", done.stdout)}
    assert sorted(counts) == (only or sorted(scenarios(program)))
    assert all(count > int(RANDOM) + 10 for count in counts.values()), counts


# What C++ allows, by the names in the literature: the values that the loads have seen, one digit each.
OUTCOMES = {
    "message-relaxed": "00 01 10 11",
    "message-release-only": "00 01 10 11",
    "message-acquire-only": "00 01 10 11",
    "message": "00 01 11",
    "message-by-fences": "00 01 11",
    "passed-on-by-an-exchange": "00 01 11 21",
    "ended-by-a-store": "00 01 11 20 21",
    "store-buffers-relaxed": "00 01 10 11",
    "store-buffers-acquire-release": "00 01 10 11",
    "store-buffers": "01 10 11",
    "store-buffers-fenced": "01 10 11",
    "independent-acquire-release": " ".join(f"{number:04b}" for number in range(16)),
    "independent": " ".join(f"{number:04b}" for number in range(16) if number != 0b1010),
    "coherence": "00 01 02 11 12 22",
    "two-writes": "11 12 21 22",
    "what-stays": "11 12 21 22",
    "exchanges": "01 20",
    "additions": "0 1 2",
}


INDEPENDENT = ["independent-acquire-release", "independent"]
"""Those of four threads, whose schedules take seconds."""


@pytest.mark.contract("The scheduler tries every outcome that C++'s memory orders allow, and no other.")
@pytest.mark.parametrize(
    "names",
    [
        [name for name in OUTCOMES if name not in INDEPENDENT],
        pytest.param(INDEPENDENT, marks=pytest.mark.thorough),
    ],
    ids=["two or three threads", "four threads"],
)
def test_the_scheduler_finds_the_outcomes_that_the_memory_orders_allow(names: list[str]) -> None:
    done = run(compiled("litmus", SCHEDULED), *names)
    found = {name: " ".join(seen) for name, *seen in map(str.split, done.stdout.splitlines())}
    assert found == {name: OUTCOMES[name] for name in names}


def found_and_replayed(program: str, scenario: str, defect: str, told: str, *words: str) -> None:
    built = compiled(program, SCHEDULED, planted=True)
    planted = plant(defect)
    found = run(built, *words, RANDOM, SEED, scenario, environment=planted)
    assert found.returncode == 1
    assert told in found.stdout
    replay = re.search(r"^replay (\S+) (\d+)$", found.stdout, re.MULTILINE)
    assert replay is not None, found.stdout
    again = run(built, "replay", replay[1], replay[2], environment=planted)
    assert again.returncode == 1
    assert told in again.stdout
    # It is the defect that fails, not the schedule.
    assert run(built, "replay", replay[1], replay[2]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "scenario", "defect", "told"),
    [
        ("mailbox_schedules", "lock-free/two-producers", "weak_park", "a wake-up was lost"),
        ("mailbox_schedules", "lock-free/counted", "weak_counts", "more is counted than was put"),
        ("queue_schedules", "first-counted-in-order", "weak_counts", "was not admitted"),
    ],
)
def test_a_planted_order_that_is_too_weak_is_found_and_its_schedule_can_be_replayed(
    program: str, scenario: str, defect: str, told: str
) -> None:
    found_and_replayed(program, scenario, defect, told, "weak", "1", "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "scenario", "defect", "told"),
    [
        ("mailbox_schedules", "lock-free/two-producers", "park_without_look", "a wake-up was lost"),
        ("mailbox_schedules", "lock-free/two-producers", "late_signal", "a wake-up was lost"),
        ("mailbox_schedules", "lock-free/two-producers", "woken_once", "a wake-up was lost"),
        ("mailbox_schedules", "lock-free/stalled-producer", "woken_too_early", "a wake-up was lost"),
        ("mailbox_schedules", "lock-free/stalled-producer", "wake_only_when_empty", "a wake-up was lost"),
        ("mailbox_schedules", "lock-free/closed-in-the-middle", "check_then_push", "lost"),
        (
            "mailbox_schedules",
            "lock-free/quiesced-by-another",
            "ended_by_a_later_look",
            "although mail was left",
        ),
        ("mailbox_schedules", "lock-free/put-again", "claim_twice", "a data race"),
        ("mailbox_schedules", "lock-free/counted", "counts_torn", "not counted"),
        ("mailbox_schedules", "lock-free/armed-and-parked", "armed_is_enough", "a wake-up was lost"),
        ("mailbox_schedules", "lock-free/armed-and-parked", "arm_disowns", "a data race"),
        ("mailbox_schedules", "mutex/two-producers", "mutex_park_without_look", "a wake-up was lost"),
        ("mailbox_schedules", "mutex/armed", "mutex_armed_stays", "several calls"),
        ("queue_schedules", "first-completion-wins", "late_completion_overwrites", "exactly one"),
        ("collector_schedules", "first-wins", "collector_taken_twice", "a data race"),
        ("queue_schedules", "renewed-meanwhile", "earlier_attempt_accepted", "earlier attempt"),
        ("queue_schedules", "around-a-watermark", "passes_watermark", "passed each other"),
        ("queue_schedules", "cleared-unordered", "clear_without_waiting", "nobody has completed"),
        ("queue_schedules", "cleared-in-order", "taken_in_two_steps", "both sides"),
        ("queue_schedules", "as-they-finish", "finished_in_reverse", "came out later"),
        ("queue_schedules", "counted-in-order", "running_beyond_size", "what was cleared runs"),
        ("queue_schedules", "counted-alone-in-order", "alone_not_counted", "still runs"),
        ("queue_schedules", "counted-alone-unordered", "alone_any_attempt", "of an earlier entry"),
        ("handover_schedules", "woken-up", "wake_up_forgotten", "a wake-up was lost"),
        ("handover_schedules", "closed-meanwhile", "close_without_wake", "a wake-up was lost"),
        ("handover_schedules", "failed", "failure_overtakes", "before the items"),
    ],
)
def test_a_planted_defect_is_found_and_its_schedule_can_be_replayed(
    program: str, scenario: str, defect: str, told: str
) -> None:
    found_and_replayed(program, scenario, defect, told, "all", PREEMPTIONS)
