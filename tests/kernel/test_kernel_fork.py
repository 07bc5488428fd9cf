"""Fork: what was made before it refuses to work in the child, nothing there hangs, and the parent goes on."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox import PillarboxError
from pillarbox.kernel import ForkedError

if not hasattr(os, "fork"):
    pytest.skip("this platform has no fork", allow_module_level=True)

SCRIPT = Path(__file__).with_name("forked_run.py")


@pytest.mark.contract(
    "What was made before a fork refuses to work in the child, and the parent goes on.",
    convicts=["foreign_traversed"],
)
@pytest.mark.parametrize(
    "scenario",
    [
        "everything_is_refused",
        "new_objects_work_in_the_child_and_not_in_its_child",
        "a_thread_sleeps_in_it",
        "threads_are_busy_with_it",
        "nothing_is_released_by_the_child",
        "a_cycle_through_it_stays_in_the_child",
        "a_signal_handler_forks_in_the_midst_of_a_wait",
        "a_mail_of_a_batch_forks",
    ],
)
def test_in_the_child_of_a_fork(scenario: str) -> None:
    # ThreadSanitizer otherwise ends a child that starts a thread.
    options = os.environ.get("TSAN_OPTIONS", "") + ":die_after_fork=0"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), scenario],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=os.environ | {"TSAN_OPTIONS": options},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_error_names_the_class_and_the_process_and_survives_pickling() -> None:
    error = ForkedError("Handover", 17)
    assert isinstance(error, PillarboxError)
    assert "Handover" in str(error) and "17" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.kind, copy.pid, str(copy)) == (ForkedError, "Handover", 17, str(error))
