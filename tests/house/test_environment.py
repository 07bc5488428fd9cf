"""The environment of the tests has what they use."""

from __future__ import annotations

from importlib.metadata import version


def test_openais_package_is_there_so_that_no_test_of_it_is_skipped() -> None:
    assert version("openai").split(".")[0] == "3"
