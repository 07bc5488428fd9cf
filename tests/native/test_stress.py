"""The kernel's headers among threads that no interpreter lock orders, also under ThreadSanitizer."""

import sys

import pytest

from spec.native import BACKENDS, EDGES, REPORTED, compiled, plant, run
from tests.native.sanitizers import ASAN, TSAN, needs

PROGRAMS = [
    *(("inbox_stress", backend) for backend in BACKENDS),
    *(("mailbox_storm", f"{backend} {producers}") for backend in BACKENDS for producers in (1, 2, 4, 8, 64)),
    ("queue_stress", ""),
    ("queue_sweep", ""),
    ("handover_stress", ""),
    ("slab_places", ""),
]


@pytest.mark.contract(convicts=["slab_stays", "slab_released_early", "native_post_leaks"])
@pytest.mark.parametrize(
    ("program", "kind", "sanitizer"),
    [
        ("slab_places", "", "-O2"),
        *(
            pytest.param(*program, sanitizer, marks=pytest.mark.slow)
            for sanitizer in ("-O2", "-DPILLARBOX_NO_FUTEX", TSAN, ASAN)
            for program in PROGRAMS
            if (*program, sanitizer) != ("slab_places", "", "-O2")
        ),
    ],
)
def test_native_threads_find_every_promise_kept(program: str, kind: str, sanitizer: str) -> None:
    needs(sanitizer)
    done = run(compiled(program, sanitizer), *kind.split())
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.contract(convicts=["wakes_for_nothing", "wakes_each_time"])
@pytest.mark.skipif(sys.platform != "linux", reason="a futex is Linux's")
def test_a_put_makes_a_system_call_only_if_the_consumer_sleeps_and_one_for_a_burst() -> None:
    done = run(compiled("wake_calls", "-O2"))
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ok"]), done.stdout + done.stderr
    assert "puts to a consumer that never slept: 0 woken, 0 slept" in done.stdout
    assert "a burst to one that sleeps: 1 woken, 1 slept" in done.stdout


@pytest.mark.contract(
    "A wait lasts its time and ends, however far the system's clock is set back.",
    convicts=["waits_for_wall_clock", "ends_at_wall_time", "waits_by_wall_clock", "second_not_carried"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the C++ library waits")
@pytest.mark.parametrize("backend", ["-O2", "-DPILLARBOX_NO_FUTEX"])
def test_a_wait_lasts_its_time_whatever_the_wall_clock_shows(backend: str) -> None:
    done = run(compiled("waits_clock", backend))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the C++ library waits")
@pytest.mark.parametrize(
    "defect",
    [
        "waits_for_wall_clock",
        "waits_by_wall_clock",
        "second_not_carried",
        # Noticed by the time that it takes.
        pytest.param("ends_at_wall_time", marks=pytest.mark.slow),
    ],
)
def test_a_wait_by_the_wall_clock_is_noticed(defect: str) -> None:
    done = run(compiled("waits_clock", "-O2", planted=True), environment=plant(defect))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "a wait is too short" in done.stdout or "a wait does not end" in done.stdout


@pytest.mark.contract(
    convicts=[
        "weak_close",
        "weak_push",
        "weak_fetch",
        "weak_claim",
        "weak_release",
        "weak_free",
        "weak_put",
        "weak_complete",
        "weak_finish",
        "weak_collect",
        "weak_emit",
        "weak_snapshot",
        "weak_take",
    ]
)
@pytest.mark.parametrize(
    ("program", "edge"), [EDGES[0], *(pytest.param(*edge, marks=pytest.mark.slow) for edge in EDGES[1:])]
)
def test_one_edge_between_two_threads_is_enough_to_pass_something_on(program: str, edge: str) -> None:
    needs(TSAN)
    done = run(compiled(program, TSAN), edge)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "defect", "edge"),
    [
        ("inbox_orders", "weak_push", "push-fetch"),
        ("inbox_orders", "weak_push", "push-close"),
        ("inbox_orders", "weak_fetch", "push-fetch"),
        ("inbox_orders", "weak_close", "push-close"),
        ("inbox_orders", "weak_claim", "release-claim"),
        ("inbox_orders", "weak_release", "release-claim"),
        ("inbox_orders", "weak_free", "free-free"),
        ("queue_orders", "weak_put", "put-complete"),
        ("queue_orders", "weak_complete", "put-complete"),
        ("queue_orders", "weak_complete", "complete-emit"),
        ("queue_orders", "weak_emit", "complete-emit"),
        ("queue_orders", "weak_finish", "complete-collect"),
        ("queue_orders", "weak_collect", "complete-collect"),
        ("queue_orders", "weak_snapshot", "complete-snapshot"),
        ("queue_orders", "weak_take", "complete-close"),
    ],
)
def test_a_weakened_memory_order_is_a_race_that_the_sanitizer_sees(
    program: str, defect: str, edge: str
) -> None:
    needs(TSAN)
    done = run(compiled(program, TSAN, planted=True), edge, environment=plant(defect))
    assert done.returncode == REPORTED, done.stdout + done.stderr
    assert "data race" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "defect"),
    [
        ("queue_stress", "earlier_attempt_accepted"),
        ("queue_stress", "restored_called_again"),
        ("handover_stress", "one_item_too_many"),
        ("handover_stress", "failure_overtakes"),
        ("slab_places", "slab_stays"),
        ("slab_places", "slab_released_early"),
        ("slab_places", "native_post_leaks"),
    ],
)
def test_native_threads_find_a_planted_defect(program: str, defect: str) -> None:
    done = run(compiled(program, "-O2", planted=True), environment=plant(defect))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout not in ("", "ok\n")
