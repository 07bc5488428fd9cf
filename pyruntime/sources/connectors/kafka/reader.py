"""Reads partitions with one consumer, many at a time: `KafkaSplitReader`. One thread, its fetcher's.

A range ends where its last record is, or where the consumer has come past it: records before its end may be
markers of transactions, or compacted away, and are never seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.kafka.client import ANSWER, Complaints, KafkaOffsets, package
from pillarbox.sources.connectors.kafka.records import Batches, KafkaSplit, Partition
from pillarbox.sources.connectors.log import LogSplitReader
from pillarbox.sources.reader import Fetched, SplitsChange, SplitsRemoved

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.kafka.source import KafkaSource

MAX_MESSAGES = 1_000
"""That one fetch takes. The client makes an object of each; with many of them at a time
they fall out of the processor's caches before they are read, and cost three times as much."""
MIN_MESSAGES = 10
FETCH_BYTES = 8 * 2**20
"""Of one fetch, about."""
WAKE_UP_INTERVAL_S = 0.05
"""After which a fetch that waits looks whether it was woken."""
LINGER_S = 0.005
"""That a fetch waits for more, once it has something."""
RANGE_WAIT_MS = 20
"""That the broker keeps a request for which it has nothing, where that shows a range's end."""
PREFETCHED_MESSAGES = 10_000
"""That the client fetches ahead."""
FETCH_BACKOFF_MS = 10
"""Milliseconds after which a client that has fetched enough looks whether it has still. By default that is a
second, in which whoever reads faster waits: four times as slow."""


class _Reading:
    """A split that the consumer reads, and where it stands."""

    __slots__ = ("position", "split")

    def __init__(self, split: KafkaSplit) -> None:
        self.split = split
        self.position: int = split.start


class KafkaSplitReader(LogSplitReader[KafkaSplit]):
    """See the module. Of several ranges of one partition it reads one after the other."""

    def __init__(self, source: KafkaSource, schema: pa.Schema) -> None:
        super().__init__()
        self._source = source
        self._batches = Batches(schema)
        self._consumer: Any = None
        self._settings: dict[str, Any] = {}
        self._complaints = Complaints(source.service)
        # False once anything went wrong with the consumer, which another reader should not have then.
        self._sound = True
        self._reading: dict[Partition, _Reading] = {}
        self._waiting: dict[Partition, deque[KafkaSplit]] = {}
        self._places: dict[str, Partition] = {}
        self._paused: set[str] = set()
        self._waited = 0.0
        self._max_messages = MAX_MESSAGES

    def close(self) -> None:
        """Give the consumer back, or end it; it is in no group, so nobody needs to be told."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        if not self._sound or self._complaints.last is not None:
            consumer.close()
            return
        consumer.unassign()
        self._source.service.give_back(self._settings, consumer, self._complaints)

    # -- splits ------------------------------------------------------------------------------------

    def handle_splits_changes(self, change: SplitsChange[KafkaSplit]) -> None:
        """Take partitions up, or let go of them."""
        if isinstance(change, SplitsRemoved):
            for split_id in change.split_ids:
                self._remove(split_id)
            return
        splits = self._selected(self._source, change.splits)
        if self._consumer is None and splits:
            self._open(splits)
        for split in splits:
            self._places[split.split_id] = split.place
            self._waiting.setdefault(split.place, deque()).append(split)
        places = {split.place for split in splits}
        for place in places:
            self._end_earlier(place)
        self._begin(places)

    def _end_earlier(self, place: Partition) -> None:
        """Finish what is read of a topic that was deleted, where another one of its name is to be read."""
        reading = self._reading.get(place)
        waiting = [_Reading(split) for split in self._waiting[place]]
        endless = [each for each in (reading, *waiting) if each is not None and each.split.stop is None]
        if len(endless) < 2:
            return
        found = KafkaOffsets(self._source.service, committed_only=True).topics([place.topic])
        for each in endless:
            if place.topic in found and found[place.topic][0] != each.split.topic_id:
                self._lost(each, "its topic was deleted, and made again", None)
                self._finish(each, ())
                if each is reading:
                    self._let_go(place)
                else:
                    self._waiting[place].remove(each.split)

    def _open(self, splits: Sequence[KafkaSplit]) -> None:
        """Make the consumer, for such splits as these."""
        self._settings = {
            "isolation.level": self._source.isolation,
            "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
            "queued.min.messages": PREFETCHED_MESSAGES,
        }
        rows = [split.rows for split in splits]
        if None not in rows:
            # What lies behind a range is fetched for nothing; in powers of ten, for a consumer is used
            # again only with the same settings. An end that is no record is seen only by a request that
            # finds nothing, which should not take long.
            largest = 10 ** len(str(max(row or 1 for row in rows)))
            self._settings["queued.min.messages"] = min(PREFETCHED_MESSAGES, largest)
            self._settings["fetch.wait.max.ms"] = RANGE_WAIT_MS
        self._consumer, self._complaints = self._source.service.consumer(self._settings)

    def _begin(self, places: Collection[Partition]) -> None:
        """Read the next split of each of these partitions, where none is being read."""
        begun = []
        for place in places:
            waiting = self._waiting.get(place)
            while waiting and place not in self._reading:
                reading = _Reading(waiting.popleft())
                if reading.split.stop is not None and reading.split.start >= reading.split.stop:
                    self._finish(reading, ())
                else:
                    self._reading[place] = reading
                    begun.append(reading)
            if not waiting:
                self._waiting.pop(place, None)
        self._assign(begun)

    def _assign(self, begun: Sequence[_Reading]) -> None:
        from confluent_kafka import TopicPartition

        if not begun:
            return
        self._waited = 0.0
        self._consumer.incremental_assign(
            [TopicPartition(*reading.split.place, reading.position) for reading in begun]
        )
        paused = [reading.split.place for reading in begun if reading.split.split_id in self._paused]
        if paused:
            self._consumer.pause([TopicPartition(*place) for place in paused])

    def _let_go(self, place: Partition) -> None:
        from confluent_kafka import TopicPartition

        self._reading.pop(place, None)
        self._consumer.incremental_unassign([TopicPartition(*place)])

    def _remove(self, split_id: str) -> None:
        place = self._places.pop(split_id, None)
        if place is None:
            return
        self._paused.discard(split_id)
        waiting = self._waiting.get(place, deque())
        self._waiting[place] = deque(split for split in waiting if split.split_id != split_id)
        self._ended = [fetched for fetched in self._ended if fetched.split_id != split_id]
        reading = self._reading.get(place)
        if reading is not None and reading.split.split_id == split_id:
            self._let_go(place)
            self._begin([place])

    def _finish(self, reading: _Reading, records: Any) -> None:
        split = reading.split
        self._places.pop(split.split_id, None)
        self._paused.discard(split.split_id)
        self._ended.append(Fetched(split.split_id, records, split.stop, finished=True))

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Fetch nothing of some partitions for a while. What the client had fetched of them it drops."""
        from confluent_kafka import TopicPartition

        self._paused.update(pause)
        self._paused.difference_update(resume)
        for split_ids, order in ((pause, self._consumer.pause), (resume, self._consumer.resume)):
            places = [self._places[split_id] for split_id in split_ids if split_id in self._places]
            here = [
                place
                for place in places
                if place in self._reading and self._reading[place].split.split_id in split_ids
            ]
            if here:
                order([TopicPartition(*place) for place in here])
        self._waited = 0.0

    # -- records -----------------------------------------------------------------------------------

    def fetch(self) -> Sequence[Fetched]:
        """The next messages, one batch for each partition that has any."""
        messages = () if self._ended else self._take()
        fetched: list[Fetched] = []
        if messages:
            runs, ends, faults = self._sorted(messages)
            if runs or ends:
                self._waited = 0.0
            for place in {**runs, **ends}:
                fetched += self._read(place, runs.get(place, []), ends.get(place, -1))
            # After the records that came before them.
            for message in faults:
                self._take_fault(message, message.error())
        return [*fetched, *self._take_ended()]

    def _take(self) -> Sequence[Any]:
        if self._consumer is None:
            self._woken.wait(WAKE_UP_INTERVAL_S)
        while self._consumer is not None:
            # Who is woken takes what is there: one that is woken again and again still comes to its end.
            was_woken = self._woken.is_set()
            found: list[Any] = self._consumer.consume(1, 0.0 if was_woken else WAKE_UP_INTERVAL_S)
            if found:
                found += self._consumer.consume(self._max_messages - 1, LINGER_S)
                return found
            if was_woken:
                break
            self._waited += WAKE_UP_INTERVAL_S
            if self._waited > self._source.patience:
                self._check_patience()
        self._woken.clear()
        return ()

    def _check_patience(self) -> None:
        ranges = [
            reading.split.split_id
            for reading in self._reading.values()
            if reading.split.stop is not None and reading.split.split_id not in self._paused
        ]
        if ranges:
            why = self._complaints.last
            raise TimeoutError(
                f"{self._source.service!r}: nothing came for {self._waited:.0f} s of {ranges[0]!r}, which "
                "has not ended" + (f" ({why})" if why else "")
            )

    def _sorted(
        self, messages: Sequence[Any]
    ) -> tuple[dict[Partition, list[Any]], dict[Partition, int], list[Any]]:
        """The records by partitions, in their order; how far those were read that have ended; and faults."""
        kafka = package()
        message_type = kafka.Message
        ends: dict[Partition, int] = {}
        faults: list[Any] = []
        errors = list(map(message_type.error, messages))
        if any(errors):
            for message, error in zip(messages, errors, strict=True):
                if error is None:
                    continue
                if error.code() == kafka.KafkaError._PARTITION_EOF:
                    place = Partition(message.topic(), message.partition())
                    ends[place] = max(ends.get(place, -1), message.offset())
                else:
                    faults.append(message)
            messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
        if not messages:
            return {}, ends, faults
        numbers: list[int] = list(map(message_type.partition, messages))
        topics: list[str] = list(map(message_type.topic, messages))
        if numbers.count(numbers[0]) == len(numbers) and topics.count(topics[0]) == len(topics):
            return {Partition(topics[0], numbers[0]): list(messages)}, ends, faults
        runs: dict[Partition, list[Any]] = {}
        for place, first, last in _runs(topics, numbers):
            runs.setdefault(place, []).extend(messages[first:last])
        return runs, ends, faults

    def _read(self, place: Partition, messages: list[Any], end: int) -> Iterator[Fetched]:
        """What these messages are of the splits that are read of a partition, one after the other."""
        offsets: list[int] = list(map(package().Message.offset, messages))
        end = max(end, offsets[-1] + 1 if offsets else -1)
        while (reading := self._reading.get(place)) is not None:
            split = reading.split
            low = bisect_left(offsets, reading.position)
            high = len(offsets) if split.stop is None else bisect_left(offsets, split.stop)
            reading.position = max(reading.position, end if split.stop is None else min(end, split.stop))
            finished = split.stop is not None and end >= split.stop
            batch: Any = ()
            if high > low:
                batch = self._batches.batch(split, messages[low:high], offsets[low:high])
                wanted = FETCH_BYTES * (high - low) // max(1, batch.nbytes)
                self._max_messages = max(MIN_MESSAGES, min(MAX_MESSAGES, wanted))
            if not finished:
                if high > low:
                    yield Fetched(split.split_id, batch, reading.position)
                return
            self._finish(reading, batch)
            if not self._go_on(place, split.stop, end):
                return

    def _go_on(self, place: Partition, reached: int, end: int) -> bool:
        """A range has been read: begin with the next one of its partition.

        Whether that begins in what was taken with the range, between `reached` and `end`. The consumer
        stands at `end`, so it needs no word then.
        """
        self._reading.pop(place)
        waiting = self._waiting.get(place, deque())
        while waiting and waiting[0].start == waiting[0].stop:
            self._finish(_Reading(waiting.popleft()), ())
        if waiting and reached <= waiting[0].start <= end and waiting[0].split_id not in self._paused:
            self._reading[place] = _Reading(waiting.popleft())
            return True
        self._let_go(place)
        self._begin([place])
        return False

    # -- errors ------------------------------------------------------------------------------------

    def _take_fault(self, message: Any, error: Any) -> None:
        from confluent_kafka import KafkaError

        code, self._sound = error.code(), False
        place = Partition(message.topic(), message.partition()) if message.topic() else None
        if code == KafkaError._AUTO_OFFSET_RESET and place is not None:
            self._out_of_range(place)
        elif code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.UNKNOWN_TOPIC_ID,
        ):
            if place in self._reading:
                self._lost(self._reading[place], "there is no such partition any more", None)
        elif error.fatal() or code in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError._AUTHENTICATION,
        ):
            text = self._source.service.hide(str(error.str()))
            raise PermissionError(f"{self._source.service!r}: reading {place or 'topics'}: {text}")
        else:
            # The client tries again.
            self._complaints.take(error)

    def _out_of_range(self, place: Partition) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        reading = self._reading.get(place)
        if reading is None:
            return
        try:
            first, end = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=ANSWER)
        except KafkaException as error:
            raise self._source.service.failed(f"asking for the ends of {place}", error) from None
        if first <= reading.position <= end:
            # It is there again, as after a change of leaders.
            goes_on = reading.position
        else:
            goes_on = first
            self._lost(reading, f"it has offsets {first} up to {end} now", goes_on)
        if place not in self._reading:
            return
        self._let_go(place)
        reading.position = goes_on
        self._reading[place] = reading
        self._assign([reading])

    def _lost(self, reading: _Reading, why: str, goes_on: int | None) -> None:
        """Fail, or go on behind what is gone: a range that has nothing else is finished."""
        split = reading.split
        self._source.lost(split.unreadable_from(reading.position, why))
        stop = split.stop
        if stop is not None and (goes_on is None or goes_on >= stop or goes_on < reading.position):
            self._finish(reading, ())
            self._let_go(split.place)
            self._begin([split.place])


def _runs(topics: Sequence[str], numbers: Sequence[int]) -> Iterator[tuple[Partition, int, int]]:
    """Runs of one partition: which, from where, up to where."""
    first = 0
    keys = list(zip(topics, numbers, strict=True))
    for at, (key, following) in enumerate(pairwise(keys), 1):
        if key != following:
            yield Partition(*key), first, at
            first = at
    yield Partition(*keys[-1]), first, len(keys)
