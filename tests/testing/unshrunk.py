"""How the tests run suites against subjects that are wrong: the first steps that show it are enough."""

from hypothesis import Phase, settings

UNSHRUNK = settings(
    derandomize=True,
    deadline=None,
    max_examples=3000,
    stateful_step_count=30,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
