"""Sources: one `Source` for batch, stream and task. The interfaces of FLIP-27, and what runs them."""

from pillarbox.sources.enumerator import SplitEnumerator
from pillarbox.sources.event_time import WatermarkStrategy
from pillarbox.sources.reader import Fetched, SplitReader
from pillarbox.sources.simple import SimpleSource
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import SourceCoordinator
from pillarbox.sources.task_input import SourceInput

__all__ = [
    "Fetched",
    "SimpleSource",
    "Source",
    "SourceCoordinator",
    "SourceInput",
    "Split",
    "SplitEnumerator",
    "SplitReader",
    "WatermarkStrategy",
]
