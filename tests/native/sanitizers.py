"""The sanitizer that a test of a native program wants, and a check that it works here."""

import pytest

from spec.native import has_thread_sanitizer

TSAN = "-fsanitize=thread"
ASAN = "-fsanitize=address,undefined"


def needs(flag: str) -> None:
    """Skips the test if the flag asks for ThreadSanitizer and that does not work here."""
    if flag == TSAN and not has_thread_sanitizer():
        pytest.skip("ThreadSanitizer does not work here")
