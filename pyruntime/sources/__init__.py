"""Sources: one `Source` for batch, stream and task. The interfaces of FLIP-27, and what runs them."""

from pillarbox.sources.channel import SourceChannel
from pillarbox.sources.coordinator import SourceCoordinator
from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, ReadLimit, SplitEnumerator
from pillarbox.sources.event_time import WatermarkStrategy
from pillarbox.sources.fetching import FetchingReader, ReadFailed, Threading
from pillarbox.sources.link import SourceEvent
from pillarbox.sources.reader import (
    Fetched,
    ReaderContext,
    SourceReader,
    SplitReader,
    SplitsAdded,
    SplitsChange,
    SplitsRemoved,
)
from pillarbox.sources.reading import read_splits
from pillarbox.sources.serializer import DataclassSerializer, JsonSerializer, Serializer
from pillarbox.sources.simple import SimpleSource
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import DataLossError, OffsetSplit, Split
from pillarbox.sources.task_input import SourceInput

__all__ = [
    "Boundedness",
    "DataLossError",
    "DataclassSerializer",
    "EnumeratorContext",
    "Fetched",
    "FetchingReader",
    "JsonSerializer",
    "OffsetSplit",
    "ReadFailed",
    "ReadLimit",
    "ReaderContext",
    "ReaderInfo",
    "Serializer",
    "SimpleSource",
    "Source",
    "SourceChannel",
    "SourceCoordinator",
    "SourceEvent",
    "SourceInput",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "SplitReader",
    "SplitsAdded",
    "SplitsChange",
    "SplitsRemoved",
    "Threading",
    "WatermarkStrategy",
    "read_splits",
]
