"""A source of files for tests that write them: each is taken as soon as it is written."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.sources.connectors.files import FileSource


@dataclass(frozen=True, repr=False)
class SettledFiles(FileSource):
    """Files that nobody writes any more. A test that is about their rest says `settle`."""

    settle: float | None = 0.0
