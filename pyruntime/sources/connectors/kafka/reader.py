"""Reads partitions with one consumer, many at a time: `KafkaSplitReader`. One thread, its fetcher's.

A consumer stands at one offset of a partition. So of the splits of a partition it reads the first that is not
paused; the others wait until that one is finished or paused. What it reads is settled anew, from the splits
alone, whenever these change.

A range ends where its last record is, or where the consumer has come past it: records before its end may be
markers of transactions, or compacted away, and are never seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.kafka.client import (
    ANSWER_S,
    Consumer,
    KafkaOffsets,
    KafkaSplit,
    Partition,
    package,
    to_batch,
)
from pillarbox.sources.connectors.log import LOOK_S, Cursor, LogReader
from pillarbox.sources.reader import Fetched

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.kafka.source import KafkaSource

MAX_MESSAGES = 1_000
"""Messages that one fetch takes. The client makes an object of each; with many of them at a time
they fall out of the processor's caches before they are read, and cost three times as much."""
MIN_MESSAGES = 10
FETCH_BYTES = 8 * 2**20
"""Bytes of one fetch, about."""
LINGER_S = 0.005
"""Seconds that a fetch waits for more, once it has something."""
RANGE_WAIT_MS = 20
"""Milliseconds that the broker keeps a request for which it has nothing, where that shows a range's end."""
PREFETCHED_MESSAGES = 10_000
"""Messages that the client fetches ahead."""
FETCH_BACKOFF_MS = 10
RANGE_TIMEOUT_S = 120.0
"""For which a range that has an end may bring nothing: longer than brokers take to elect a leader."""
"""Milliseconds after which a client that has fetched enough looks whether it has still. By default that is a
second, in which whoever reads faster waits: four times as slow."""

OUT_OF_RANGE = "_AUTO_OFFSET_RESET"
NO_PARTITION = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
REFUSED = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "_AUTHENTICATION")
"""Names of errors."""


class KafkaSplitReader(LogReader[KafkaSplit, Cursor[KafkaSplit]]):
    """See the module."""

    source: KafkaSource

    def __init__(self, source: KafkaSource, schema: pa.Schema) -> None:
        super().__init__(source, schema)
        self._kafka = package()
        self._consumer: Any = None
        # False once anything went wrong with the consumer, which another reader should not have then.
        self._sound = True
        self._reading: dict[Partition, Cursor[KafkaSplit]] = {}
        self._waited = 0.0
        self._max_messages = MAX_MESSAGES

    def close(self) -> None:
        """Give the consumer back, or end it."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self.source.service.give_back(consumer, self._sound)

    # -- what the consumer reads -------------------------------------------------------------------

    def _open(self, splits: Sequence[KafkaSplit]) -> Consumer:
        """Get a consumer for such splits as these."""
        settings = {"isolation.level": self.source.isolation, "fetch.queue.backoff.ms": FETCH_BACKOFF_MS}
        # What lies behind a range is fetched for nothing; in powers of ten, for a consumer is used again only
        # with the same settings.
        largest = 10 ** max(len(str(split.rows or PREFETCHED_MESSAGES)) for split in splits)
        settings["queued.min.messages"] = min(PREFETCHED_MESSAGES, largest)
        if all(split.stop is not None for split in splits):
            # An end that is not a record is seen only by a request that finds nothing: it should not take
            # long.
            settings["fetch.wait.max.ms"] = RANGE_WAIT_MS
        found: Consumer = self.source.service.consumer(settings)
        return found

    def settle(self, live: Sequence[Cursor[KafkaSplit]]) -> None:
        """Have the consumer read the first of these splits of each partition, each from where it stands."""
        self._end_earlier(live)
        wanted: dict[Partition, Cursor[KafkaSplit]] = {}
        for cursor in live:
            if not cursor.ended:
                wanted.setdefault(cursor.split.place, cursor)
        if self._consumer is None and wanted:
            self._consumer = self._open([cursor.split for cursor in live])
        left = [place for place, cursor in self._reading.items() if wanted.get(place) is not cursor]
        if left:
            self._consumer.client.incremental_unassign([self._kafka.TopicPartition(*place) for place in left])
        begun = [place for place, cursor in wanted.items() if self._reading.get(place) is not cursor]
        if begun:
            places = [self._kafka.TopicPartition(*place, wanted[place].position) for place in begun]
            self._consumer.client.incremental_assign(places)
        self._reading, self._waited = wanted, 0.0

    def _let_go(self, place: Partition) -> None:
        """Have the consumer not read a partition; it is settled anew what it reads."""
        self._consumer.client.incremental_unassign([self._kafka.TopicPartition(*place)])
        del self._reading[place]
        self.changed = True

    def _end_earlier(self, live: Sequence[Cursor[KafkaSplit]]) -> None:
        """End what is read of a topic that was deleted, where another one of its name is to be read."""
        endless = [cursor for cursor in live if cursor.split.stop is None]
        if len(endless) == len({cursor.split.place for cursor in endless}):
            return
        offsets = KafkaOffsets(self.source.service, committed_only=True)
        found = offsets.topics({cursor.split.topic for cursor in endless})
        for cursor in endless:
            topic = cursor.split.topic
            if topic in found and found[topic][0] != cursor.split.topic_id:
                self._lost(cursor, "its topic was deleted, and made again")
                cursor.ended = True

    # -- records -----------------------------------------------------------------------------------

    def read(self, live: Sequence[Cursor[KafkaSplit]]) -> list[Fetched]:
        """The next messages, one batch for each partition that has any."""
        messages = self._consumer.client.consume(1, LOOK_S)
        if not messages:
            self._check_progress()
            return []
        messages += self._consumer.client.consume(self._max_messages - 1, LINGER_S)
        runs, ends, faults = self._sorted(messages)
        if runs or ends:
            self._waited = 0.0
        fetched = [self._taken(place, runs.get(place, []), ends.get(place, -1)) for place in {**runs, **ends}]
        # After the records that came before them.
        for message in faults:
            self._take_fault(message, message.error())
        return [each for each in fetched if each is not None]

    def _check_progress(self) -> None:
        self._waited += LOOK_S
        splits = [cursor.split for cursor in self._reading.values()]
        ranges = [split.split_id for split in splits if split.stop is not None]
        if ranges and self._waited > RANGE_TIMEOUT_S:
            why = "".join(f" ({complaint})" for complaint in self._consumer.complaints)
            raise TimeoutError(
                f"{self.source.service!r}: nothing came for {self._waited:.0f} s of {ranges[0]!r}, which "
                f"has not ended{why}"
            )

    def _sorted(
        self, messages: list[Any]
    ) -> tuple[dict[Partition, list[Any]], dict[Partition, int], list[Any]]:
        """The records by partitions, in their order; how far those were read that have ended; and faults."""
        message_type = self._kafka.Message
        runs: dict[Partition, list[Any]] = {}
        ends: dict[Partition, int] = {}
        faults = [message for message in messages if message.error() is not None]
        if faults:
            messages = [message for message in messages if message.error() is None]
            at_end = [each for each in faults if each.error().name() == "_PARTITION_EOF"]
            ends = {Partition(each.topic(), each.partition()): each.offset() for each in at_end}
            faults = [each for each in faults if each not in at_end]
        topics, numbers = list(map(message_type.topic, messages)), list(map(message_type.partition, messages))
        if messages and numbers.count(numbers[0]) == topics.count(topics[0]) == len(messages):
            return {Partition(topics[0], numbers[0]): messages}, ends, faults
        places = zip(topics, numbers, strict=True)
        for place, run in groupby(zip(places, messages, strict=True), itemgetter(0)):
            runs.setdefault(Partition(*place), []).extend(map(itemgetter(1), run))
        return runs, ends, faults

    def _taken(self, place: Partition, messages: list[Any], end: int) -> Fetched | None:
        """Make rows of these messages of a partition for its split; all up to `end` has come."""
        cursor = self._reading.get(place)
        if cursor is None:
            return None
        split, records = cursor.split, ()
        offsets: list[int] = list(map(self._kafka.Message.offset, messages))
        end = max(end, offsets[-1] + 1 if offsets else -1)
        low = bisect_left(offsets, cursor.position)
        high = len(offsets) if split.stop is None else bisect_left(offsets, split.stop)
        if high > low:
            records = to_batch(split, messages[low:high], offsets[low:high], self.schema)
            wanted = FETCH_BYTES * (high - low) // max(1, records.nbytes)
            self._max_messages = max(MIN_MESSAGES, min(MAX_MESSAGES, wanted))
        if split.stop is not None and end >= split.stop:
            # What lies behind its end is dropped; what waits for it may begin before that.
            self._let_go(place)
            return self.finish(cursor, records)
        cursor.position = max(cursor.position, end)
        return Fetched(split.split_id, records, cursor.position) if high > low else None

    # -- errors ------------------------------------------------------------------------------------

    def _take_fault(self, message: Any, error: Any) -> None:
        self._sound = False
        place = Partition(message.topic(), message.partition()) if message.topic() else None
        cursor = None if place is None else self._reading.get(place)
        if error.name() in (OUT_OF_RANGE, *NO_PARTITION):
            if cursor is not None and error.name() == OUT_OF_RANGE:
                self._out_of_range(cursor)
            elif cursor is not None:
                self._lost(cursor, "there is no such partition any more")
                cursor.ended = cursor.split.stop is not None
        elif error.fatal() or error.name() in REFUSED:
            text = self.source.service.hide(str(error.str()))
            raise PermissionError(f"{self.source.service!r}: reading {place or 'topics'}: {text}")
        else:
            # The client tries again.
            self._consumer.complaints.append(self.source.service.hide(str(error.str())))

    def _out_of_range(self, cursor: Cursor[KafkaSplit]) -> None:
        place, stop = self._kafka.TopicPartition(*cursor.split.place), cursor.split.stop
        try:
            first, end = self._consumer.client.get_watermark_offsets(place, timeout=ANSWER_S)
        except self._kafka.KafkaException as error:
            raise self.source.service.failed(f"asking for the ends of {place}", error) from None
        # Or it is there again, as after a change of leaders.
        if not first <= cursor.position <= end:
            self._lost(cursor, f"it has offsets {first} up to {end} now")
            # A range that has nothing else, or lies in what was deleted, is over.
            cursor.ended = stop is not None and not cursor.position < first < stop
            cursor.position = first
        self._let_go(cursor.split.place)

    def _lost(self, cursor: Cursor[KafkaSplit], why: str) -> None:
        self.source.lost(cursor.split.unreadable_from(cursor.position, why))
