"""Sources: one `Source` for batch, stream and task. The interfaces of FLIP-27, and what runs them."""

from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, ReadLimit, SplitEnumerator
from pillarbox.sources.events import SourceEvent
from pillarbox.sources.reader import (
    Fetched,
    ReaderContext,
    SourceReader,
    SplitReader,
    SplitsAdded,
    SplitsChange,
    SplitsRemoved,
)
from pillarbox.sources.serializer import DataclassSerializer, JsonSerializer, Serializer
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.sources.watermarks import WatermarkStrategy

__all__ = [
    "Boundedness",
    "DataclassSerializer",
    "EnumeratorContext",
    "Fetched",
    "JsonSerializer",
    "ReadLimit",
    "ReaderContext",
    "ReaderInfo",
    "Serializer",
    "Source",
    "SourceEvent",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "SplitReader",
    "SplitsAdded",
    "SplitsChange",
    "SplitsRemoved",
    "WatermarkStrategy",
]
