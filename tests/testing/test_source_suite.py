"""The check kit for connectors: it passes what keeps the contract, and convicts what breaks it."""

from __future__ import annotations

from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.testing import source_suite

TestGenerator = source_suite(
    lambda: GeneratorSource(60, splits=3, batch_rows=6, seed=4),
    options={"rows": "60", "splits": "3", "batch_rows": "6", "seed": "4"},
    name="TestGenerator",
)
