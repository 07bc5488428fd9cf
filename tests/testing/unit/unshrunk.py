"""Settings for suites against subjects that are wrong: the first steps that show it are enough."""

from hypothesis import Phase, settings

from pillarbox.testing.suite_machine import DEFAULT

UNSHRUNK = settings(
    derandomize=True,
    deadline=None,
    max_examples=3000,
    stateful_step_count=30,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
# As many runs and steps as a suite takes that is given no settings.
DEFAULT_SIZES = settings(
    UNSHRUNK,
    max_examples=settings.get_profile("default").max_examples,
    stateful_step_count=DEFAULT.stateful_step_count,
)
