"""A plugin of pytest for tests among planted defects: searches draw the same examples, and stop at a failure.

`-p spec.searches` adds it. A verdict on a defect is the same each time then, and no time goes on making a
failing example smaller, which nobody reads.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Changes the profile that the command line has chosen."""
    settings.register_profile(
        "planted",
        settings(),
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
    )
    settings.load_profile("planted")
