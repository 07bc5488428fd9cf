"""The property suites: random operations on a subject, compared step by step with a reference model.

Needs Hypothesis (the extra `testing`). The classes that the suites give run in the thread of the test runner.
"""
