"""Files as a source: Parquet, CSV, JSON lines and text, of a folder or of any file system that Arrow knows.

`FileSource` is all that others need.
"""

from pillarbox.sources.connectors.files.source import FileSource

__all__ = ["FileSource"]
