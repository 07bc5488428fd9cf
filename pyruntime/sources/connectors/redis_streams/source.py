"""Redis Streams as a source: `RedisStreamSource`. A value that pickles; any thread.

Ranges of ids are read (XRANGE), never a consumer group: a group gives an entry to whoever asks first, so
what was read could not be read again in the same way after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pillarbox.sources.connectors.options import Options, check_on_data_loss
from pillarbox.sources.connectors.redis_streams.client import RedisAddress
from pillarbox.sources.connectors.redis_streams.enumerator import Checkpoint, RedisStreamEnumerator
from pillarbox.sources.connectors.redis_streams.position import Position, parse_id
from pillarbox.sources.connectors.redis_streams.reader import RedisStreamReader
from pillarbox.sources.connectors.redis_streams.rows import check_schema, default_schema
from pillarbox.sources.connectors.redis_streams.split import RedisStreamSplit
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.source import Boundedness, Source

if TYPE_CHECKING:
    import pyarrow as pa


class RedisStreamSource(Source[RedisStreamSplit, Checkpoint]):
    """Entries of Redis streams, each stream in the order of its ids. Redis 6.2 or later; one server.

    url: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://. The password is
        never shown; `password_env` names an environment variable that holds it.
    streams: names, or `pattern`: those whose names match, as SCAN does it; new ones are looked for every
        `discovery_interval` seconds, which walks all keys of the database. As often a task looks whether
        those that have nothing are still there.
    schema: see `redis_streams.rows`: columns `_stream`, `_id`, `_time`, `_fields`, and any field by name.
        None: these four.
    start: "earliest", "latest" (streams that come later are read from their beginning), or an id.
    bounded: whether it ends with what is there at the start; then `splits_per_stream` parts of a stream can
        be read at the same time.
    on_data_loss: what is done when entries were trimmed before they were read: "fail" or "ignore". "fail"
        needs Redis 7.
    event_time: "id" if the time in the ids is the event time: then alignment cuts exactly. Otherwise None.
    trim: whether entries that are committed downstream are removed (XTRIM MINID). positions_key: a hash in
        which the next id of each stream is written down then, for others to see.

    Raises TypeError or ValueError for a bad argument.
    """

    split_type = RedisStreamSplit

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        schema: pa.Schema | None = None,
        start: str = "earliest",
        bounded: bool = False,
        splits_per_stream: int = 1,
        discovery_interval: float = 10.0,
        on_data_loss: str = "fail",
        event_time: str | None = None,
        trim: bool = False,
        positions_key: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self.address = RedisAddress(url, password_env)
        self.streams = () if streams is None else (streams,) if isinstance(streams, str) else tuple(streams)
        self.pattern = pattern
        if (not self.streams) == (pattern is None):
            raise ValueError(f"streams={streams!r}, pattern={pattern!r}: give one of them")
        if not all(isinstance(stream, str) and stream for stream in self.streams):
            raise TypeError(f"streams={streams!r}: must be names")
        if len(set(self.streams)) < len(self.streams):
            raise ValueError(f"streams={streams!r}: each must be named once")
        if start not in ("earliest", "latest"):
            try:
                parse_id(start)
            except ValueError:
                raise ValueError(f"start={start!r}: must be 'earliest', 'latest' or an entry's id") from None
        if event_time not in (None, "id"):
            raise ValueError(f"event_time={event_time!r}: must be 'id' or None")
        if isinstance(splits_per_stream, bool) or not isinstance(splits_per_stream, int):
            raise TypeError(f"splits_per_stream={splits_per_stream!r}: must be an int")
        if splits_per_stream < 1 or (splits_per_stream > 1 and not bounded):
            raise ValueError(
                f"splits_per_stream={splits_per_stream}: must be at least 1, and 1 where bounded is False"
            )
        if not discovery_interval > 0:
            raise ValueError(f"discovery_interval={discovery_interval!r}: must be seconds above 0")
        if bounded and (trim or positions_key or start == "latest"):
            raise ValueError(
                "bounded=True: trim, positions_key and start='latest' are for streams without end"
            )
        self.start = start
        self.bounded = bounded
        self.splits_per_stream = splits_per_stream
        self.discovery_interval = float(discovery_interval)
        self.on_data_loss = check_on_data_loss(on_data_loss)
        self.event_time = event_time
        self.trim = trim
        self.positions_key = positions_key
        self._schema = None if schema is None else check_schema(schema)

    def __repr__(self) -> str:
        what = self.pattern if self.pattern is not None else ", ".join(self.streams)
        return f"<streams {what} of {self.address!r}>"

    @property
    def boundedness(self) -> Boundedness:
        """As it was asked for."""
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def beginning(self) -> Position:
        """Where a stream is read from that was not there at the first look."""
        return Position() if self.start in ("earliest", "latest") else Position(parse_id(self.start))

    @property
    def lets_go(self) -> bool:
        """Whether streams that are gone are forgotten: those that a pattern finds, where loss is ignored."""
        return self.pattern is not None and not self.bounded and self.on_data_loss == "ignore"

    def arrow_schema(self) -> pa.Schema:
        """The columns: those that were given, or the four that every stream has."""
        return default_schema() if self._schema is None else self._schema

    def create_enumerator(self, context: EnumeratorContext[RedisStreamSplit]) -> RedisStreamEnumerator:
        """The enumerator of a new run. Raises ImportError without the package `redis`."""
        return RedisStreamEnumerator(self, context, {"known": [], "waiting": [], "begun": False})

    def restore_enumerator(
        self, context: EnumeratorContext[RedisStreamSplit], checkpoint: Checkpoint
    ) -> RedisStreamEnumerator:
        """The enumerator of a run that goes on."""
        return RedisStreamEnumerator(self, context, checkpoint)

    def create_reader(self, context: ReaderContext) -> SourceReader[RedisStreamSplit]:
        """A reader with one client for all its streams. Raises ImportError without the package `redis`."""
        schema = self.arrow_schema() if context.schema is None else check_schema(context.schema)
        return FetchingReader(
            context, lambda: RedisStreamReader(self, schema), threading=Threading.MANY_SPLITS
        )

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> RedisStreamSource:
        """See `Source.from_options`. The options are the arguments; `streams` are parted by commas."""
        given = Options(options)
        source = cls(
            given.text("url", required=True),
            given.words("streams"),
            pattern=given.text("pattern"),
            schema=schema,
            start=given.text("start") or "earliest",
            bounded=given.flag("bounded", False),
            splits_per_stream=given.number("splits_per_stream", int, 1),
            discovery_interval=given.number("discovery_interval", float, 10.0),
            on_data_loss=given.text("on_data_loss") or "fail",
            event_time=given.text("event_time"),
            trim=given.flag("trim", False),
            positions_key=given.text("positions_key"),
            password_env=given.text("password_env"),
        )
        given.check_all_read()
        return source
