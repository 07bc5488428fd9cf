"""Reads partitions with one consumer, many at a time: `KafkaSplitReader`. One thread, its fetcher's.

A consumer stands at one offset of a partition. So of the splits of a partition it reads the first that is not
paused; the others wait until that one is finished or paused. What it reads is settled anew, from the splits
alone, whenever these change.

A range ends where its last record is, or where the consumer has come past it: records before its end may be
markers of transactions, or compacted away, and are never seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.kafka.client import ANSWER, Consumer, KafkaOffsets
from pillarbox.sources.connectors.kafka.records import KafkaSplit, Partition, to_batch
from pillarbox.sources.connectors.log import LOOK_S, Cursor, LogReader
from pillarbox.sources.reader import Fetched

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.kafka.source import KafkaSource

MAX_MESSAGES = 1_000
"""That one fetch takes. The client makes an object of each; with many of them at a time
they fall out of the processor's caches before they are read, and cost three times as much."""
MIN_MESSAGES = 10
FETCH_BYTES = 8 * 2**20
"""Of one fetch, about."""
LINGER_S = 0.005
"""That a fetch waits for more, once it has something."""
RANGE_WAIT_MS = 20
"""That the broker keeps a request for which it has nothing, where that shows a range's end."""
PREFETCHED_MESSAGES = 10_000
"""That the client fetches ahead."""
FETCH_BACKOFF_MS = 10
"""Milliseconds after which a client that has fetched enough looks whether it has still. By default that is a
second, in which whoever reads faster waits: four times as slow."""


class KafkaSplitReader(LogReader[KafkaSplit, Cursor[KafkaSplit]]):
    """See the module."""

    source: KafkaSource

    def __init__(self, source: KafkaSource, schema: pa.Schema) -> None:
        super().__init__(source)
        self._schema = schema
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
        settings: dict[str, Any] = {
            "isolation.level": self.source.isolation,
            "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
            "queued.min.messages": PREFETCHED_MESSAGES,
        }
        rows = [split.rows for split in splits]
        if None not in rows:
            # What lies behind a range is fetched for nothing; in powers of ten, for a consumer is used
            # again only with the same settings. An end that is no record is seen only by a request that
            # finds nothing, which should not take long.
            largest = 10 ** len(str(max(row or 1 for row in rows)))
            settings["queued.min.messages"] = min(PREFETCHED_MESSAGES, largest)
            settings["fetch.wait.max.ms"] = RANGE_WAIT_MS
        return self.source.service.consumer(settings)

    def settle(self, live: Sequence[Cursor[KafkaSplit]]) -> None:
        """Have the consumer read the first of these splits of each partition, each from where it stands."""
        from confluent_kafka import TopicPartition

        self._end_earlier(live)
        wanted: dict[Partition, Cursor[KafkaSplit]] = {}
        for cursor in live:
            if not cursor.ended:
                wanted.setdefault(cursor.split.place, cursor)
        if self._consumer is None and wanted:
            self._consumer = self._open([cursor.split for cursor in live])
        left = [place for place, cursor in self._reading.items() if wanted.get(place) is not cursor]
        if left:
            self._consumer.client.incremental_unassign([TopicPartition(*place) for place in left])
        begun = [place for place, cursor in wanted.items() if self._reading.get(place) is not cursor]
        if begun:
            places = [TopicPartition(*place, wanted[place].position) for place in begun]
            self._consumer.client.incremental_assign(places)
        self._reading, self._waited = wanted, 0.0

    def _let_go(self, place: Partition) -> None:
        """Have the consumer not read a partition; it is settled anew what it reads."""
        from confluent_kafka import TopicPartition

        self._consumer.client.incremental_unassign([TopicPartition(*place)])
        del self._reading[place]
        self.changed = True

    def _end_earlier(self, live: Sequence[Cursor[KafkaSplit]]) -> None:
        """End what is read of a topic that was deleted, where another one of its name is to be read."""
        endless = [cursor for cursor in live if cursor.split.stop is None]
        if len(endless) == len({cursor.split.place for cursor in endless}):
            return
        several = Counter(cursor.split.place for cursor in endless)
        names = {place.topic for place, count in several.items() if count > 1}
        found = KafkaOffsets(self.source.service, committed_only=True).topics(names)
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
            self._check_patience()
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

    def _check_patience(self) -> None:
        self._waited += LOOK_S
        splits = [cursor.split for cursor in self._reading.values()]
        ranges = [split.split_id for split in splits if split.stop is not None]
        if ranges and self._waited > self.source.patience:
            why = "".join(f" ({complaint})" for complaint in self._consumer.complaints)
            raise TimeoutError(
                f"{self.source.service!r}: nothing came for {self._waited:.0f} s of {ranges[0]!r}, which "
                f"has not ended{why}"
            )

    def _sorted(
        self, messages: list[Any]
    ) -> tuple[dict[Partition, list[Any]], dict[Partition, int], list[Any]]:
        """The records by partitions, in their order; how far those were read that have ended; and faults."""
        from confluent_kafka import KafkaError, Message

        ends: dict[Partition, int] = {}
        faults: list[Any] = []
        if any(map(Message.error, messages)):
            for message in [message for message in messages if message.error() is not None]:
                if message.error().code() == KafkaError._PARTITION_EOF:
                    ends[Partition(message.topic(), message.partition())] = message.offset()
                else:
                    faults.append(message)
            messages = [message for message in messages if message.error() is None]
        topics, numbers = list(map(Message.topic, messages)), list(map(Message.partition, messages))
        if not messages:
            return {}, ends, faults
        if numbers.count(numbers[0]) == topics.count(topics[0]) == len(messages):
            return {Partition(topics[0], numbers[0]): messages}, ends, faults
        runs: dict[Partition, list[Any]] = {}
        places = zip(topics, numbers, strict=True)
        for place, run in groupby(zip(places, messages, strict=True), itemgetter(0)):
            runs.setdefault(Partition(*place), []).extend(map(itemgetter(1), run))
        return runs, ends, faults

    def _taken(self, place: Partition, messages: list[Any], end: int) -> Fetched | None:
        """What these messages are of the split that is read of a partition; all up to `end` has come."""
        from confluent_kafka import Message

        cursor = self._reading.get(place)
        if cursor is None:
            return None
        split, records = cursor.split, ()
        offsets: list[int] = list(map(Message.offset, messages))
        end = max(end, offsets[-1] + 1 if offsets else -1)
        low = bisect_left(offsets, cursor.position)
        high = len(offsets) if split.stop is None else bisect_left(offsets, split.stop)
        if high > low:
            records = to_batch(split, messages[low:high], offsets[low:high], self._schema)
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
        from confluent_kafka import KafkaError

        code, self._sound = error.code(), False
        place = Partition(message.topic(), message.partition()) if message.topic() else None
        cursor = None if place is None else self._reading.get(place)
        if code == KafkaError._AUTO_OFFSET_RESET:
            if cursor is not None:
                self._out_of_range(cursor)
        elif code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.UNKNOWN_TOPIC_ID,
        ):
            if cursor is not None:
                self._lost(cursor, "there is no such partition any more")
                cursor.ended = cursor.split.stop is not None
        elif error.fatal() or code in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError._AUTHENTICATION,
        ):
            text = self.source.service.hide(str(error.str()))
            raise PermissionError(f"{self.source.service!r}: reading {place or 'topics'}: {text}")
        else:
            # The client tries again.
            self._consumer.complaints.append(self.source.service.hide(str(error.str())))

    def _out_of_range(self, cursor: Cursor[KafkaSplit]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        place, stop = cursor.split.place, cursor.split.stop
        try:
            first, end = self._consumer.client.get_watermark_offsets(TopicPartition(*place), timeout=ANSWER)
        except KafkaException as error:
            raise self.source.service.failed(f"asking for the ends of {place}", error) from None
        # Or it is there again, as after a change of leaders.
        if not first <= cursor.position <= end:
            self._lost(cursor, f"it has offsets {first} up to {end} now")
            # A range that has nothing else, or lies in what was deleted, is over.
            cursor.ended = stop is not None and not cursor.position < first < stop
            cursor.position = first
        self._let_go(place)

    def _lost(self, cursor: Cursor[KafkaSplit], why: str) -> None:
        self.source.lost(cursor.split.unreadable_from(cursor.position, why))
