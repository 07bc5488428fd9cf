"""Jobs in one process, without Spark: a source, a chain of functions, a sink with two phases, checkpoints."""

from pillarbox.job.checkpoints import CheckpointError
from pillarbox.job.file_sinks import JsonLinesSink, ParquetSink
from pillarbox.job.kafka_sink import KafkaSink
from pillarbox.job.run import Run, run
from pillarbox.job.sink import Sink
from pillarbox.job.statistics import RunStatistics

__all__ = [
    "CheckpointError",
    "JsonLinesSink",
    "KafkaSink",
    "ParquetSink",
    "Run",
    "RunStatistics",
    "Sink",
    "run",
]
