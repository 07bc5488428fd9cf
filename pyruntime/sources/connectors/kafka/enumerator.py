"""Finds the partitions of topics, and says how far each can be read now: the enumerator of a `KafkaSource`.

Ends are asked for all partitions in one round, so a micro-batch over thousands of them costs a few requests.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.kafka.offsets import KafkaOffsets, Topic
from pillarbox.sources.connectors.kafka.split import KafkaSplit, Partition, partition_of, ranged, whole
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.errors import DataLossError

if TYPE_CHECKING:
    from pillarbox.sources.connectors.kafka.source import KafkaSource

log = logging.getLogger("pillarbox")

FRESH = 0.5
"""Seconds for which an end that nobody has asked for yet is as good as a new one: ends only grow."""
GONE = 60.0
"""Seconds after which a topic that is missing at each look was deleted: a broker that has just begun may not
know all of them yet."""
ENDING = 5.0
"""Seconds that `close` waits for a group to be told where it stands."""

Checkpoint = dict[str, Any]
"""topics: of each topic its id and how many of its partitions are known; waiting: ranges of a bounded source
that were not given out, each as topic, id, partition, start and stop; begun: whether every partition of the
first look is known, so that those which come now are new."""


class KafkaEnumerator(SplitEnumerator[KafkaSplit, Checkpoint]):
    """The enumerator of a `KafkaSource`. Confined to its thread, but `discover`."""

    def __init__(
        self, source: KafkaSource, context: EnumeratorContext[KafkaSplit], checkpoint: Checkpoint
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self._offsets = KafkaOffsets(source.clients, source.isolation == "read_committed")
        self.discovery_interval = None if source.bounded else source.discovery_interval
        self._ends: dict[Partition, int] = {}
        self._used: set[Partition] = set()
        self._asked: set[Partition] = set()
        self._ids: dict[str, str] = {}
        # Since when topics that are known are missing.
        self._missing: dict[str, float] = {}
        self._asked_at = -FRESH
        self._times: tuple[float, dict[Partition, int]] | None = None
        self._said: set[str] = set()
        self._committing = _Committing(source, self._offsets)

    # -- discovery ---------------------------------------------------------------------------------

    def discover(self, checkpoint: Checkpoint, most: int) -> tuple[Sequence[KafkaSplit], Checkpoint]:
        """Topics and partitions that are there now; of a bounded source, ranges of them."""
        if self._source.bounded:
            return self._discover_ranges(checkpoint, most)
        found = self._topics(checkpoint)
        known: dict[str, list[Any]] = dict(checkpoint["topics"])
        new: list[tuple[Partition, str]] = []
        for name, topic in found.items():
            count = _known(known, name, topic)
            until = min(topic.partitions, count + most - len(new))
            new += [(Partition(name, number), topic.topic_id) for number in range(count, until)]
            if until > count:
                known[name] = [topic.topic_id, until]
        starts = self._starts([place for place, _ in new], first_look=not checkpoint["begun"])
        begun = checkpoint["begun"] or all(
            _known(known, name, topic) == topic.partitions for name, topic in found.items()
        )
        splits = [whole(place, topic_id, starts[place]) for place, topic_id in new]
        return splits, {**checkpoint, "topics": known, "begun": begun}

    def _discover_ranges(self, checkpoint: Checkpoint, most: int) -> tuple[Sequence[KafkaSplit], Checkpoint]:
        """The ranges of a bounded source. Where it ends is settled with the first call."""
        waiting = [list(each) for each in checkpoint["waiting"]]
        if not checkpoint["begun"]:
            found = self._topics(checkpoint)
            ids = {
                Partition(name, number): topic.topic_id
                for name, topic in found.items()
                for number in range(topic.partitions)
            }
            starts, stops = self._starts(list(ids), first_look=True), self._stops(list(ids))
            waiting = [
                [place.topic, topic_id, place.number, starts[place], stops[place]]
                for place, topic_id in ids.items()
                if starts[place] < stops[place]
            ]
        splits: list[KafkaSplit] = []
        rows = self._source.split_rows
        while waiting and len(splits) < most:
            topic, topic_id, number, start, stop = waiting[0]
            end = stop if rows is None else min(stop, start + rows)
            splits.append(ranged(Partition(topic, number), topic_id, start, end))
            if end == stop:
                del waiting[0]
            else:
                waiting[0][3] = end
        return splits, {**checkpoint, "waiting": waiting, "begun": True}

    def _topics(self, checkpoint: Checkpoint) -> dict[str, Topic]:
        source = self._source
        found = self._offsets.topics(source.topics, source.pattern)
        missing = [name for name in source.topics if name not in found]
        if missing and not checkpoint["begun"]:
            raise ValueError(f"topics={missing!r}: {source.clients!r} has no such topics")
        return found

    def _starts(self, places: list[Partition], *, first_look: bool) -> dict[Partition, int]:
        """Where partitions are read from: as asked for, or those that came later from their beginning."""
        start = self._source.start if first_look else "earliest"
        if start == "earliest":
            return self._offsets.earliest(places)
        if start == "latest":
            return self._offsets.latest(places)
        if start == "committed":
            group = self._source.group_id
            assert group is not None
            committed = self._offsets.committed(places, group)
            rest = self._offsets.earliest([place for place in places if place not in committed])
            return {**committed, **rest}
        return self._settled(start, places, otherwise="earliest")

    def _stops(self, places: list[Partition]) -> dict[Partition, int]:
        """Where a bounded source ends, never behind what is there now."""
        ends = self._offsets.latest(places)
        if self._source.stop == "latest":
            return ends
        stops = self._settled(self._source.stop, places, otherwise="latest")
        return {place: min(stop, ends[place]) for place, stop in stops.items()}

    def _settled(self, where: Any, places: list[Partition], *, otherwise: str) -> dict[Partition, int]:
        """Offsets for a time, or those that were given; `otherwise` for partitions that were not named."""
        if isinstance(where, float):
            ends = self._offsets.latest(places)
            at = self._offsets.at(places, where)
            return {place: ends[place] if at[place] < 0 else at[place] for place in places}
        named = {
            place: where[place.topic][place.number]
            for place in places
            if place.number in where.get(place.topic, {})
        }
        rest = [place for place in places if place not in named]
        return {
            **named,
            **(self._offsets.earliest(rest) if otherwise == "earliest" else self._offsets.latest(rest)),
        }

    # -- micro-batches -----------------------------------------------------------------------------

    def assigned_to(self, split: KafkaSplit) -> int | None:
        """A partition without end has a reader by rule: those of a topic go to different ones."""
        if split.stop is not None:
            return None
        return (zlib.crc32(split.topic.encode()) + split.partition) % self.context.parallelism

    def advance(self, split: KafkaSplit, limit: ReadLimit) -> KafkaSplit | None:
        """What is there now of a partition, at most so many rows. Raises DataLossError."""
        if limit.nbytes is not None:
            raise ValueError(
                "max_bytes: Kafka says how many records there are, not their bytes: use max_rows"
            )
        if split.stop is not None:
            end: int | None = split.stop
        else:
            end = self._end(split)
        if end is None or end <= split.start:
            return None
        rows = end - split.start if limit.rows is None else max(1, limit.rows)
        return split.up_to(min(end, split.start + rows))

    def _end(self, split: KafkaSplit) -> int | None:
        place = split.place
        if (
            place not in self._asked
            or place in self._used
            or time.monotonic() - self._asked_at > FRESH
            or self._ids.get(place.topic, split.topic_id) != split.topic_id
        ):
            self._ask_for_ends(place)
        self._used.add(place)
        if self._ids.get(split.topic) != split.topic_id:
            self._lost(split, "its topic was deleted" + (", and made again" * (split.topic in self._ids)))
            return None
        end = self._ends.get(place)
        if end is not None and end < split.start:
            self._lost(split, f"it ends at offset {end} now")
        return end

    def _ask_for_ends(self, place: Partition) -> None:
        """The ends of all partitions that are known, and of this one, in one round."""
        known: dict[str, list[Any]] = self.checkpoint["topics"]
        found = self._offsets.topics({*known, place.topic})
        places = {Partition(name, number) for name in known for number in range(known[name][1])} | {place}
        self._asked = places
        self._ids = {name: topic.topic_id for name, topic in found.items()}
        self._ends = self._offsets.latest(
            each for each in places if each.topic in found and each.number < found[each.topic].partitions
        )
        self._used.clear()
        self._asked_at = now = time.monotonic()
        self._missing = {name: self._missing.get(name, now) for name in known if name not in found}

    def let_go(self, splits: Sequence[KafkaSplit]) -> Collection[str]:
        """Partitions of topics that were deleted, where loss is ignored."""
        if self._source.on_data_loss == "fail":
            return ()
        gone = [split for split in splits if split.stop is None and self._is_gone(split)]
        dead = {(split.topic, split.topic_id) for split in gone}
        known = self.checkpoint["topics"]
        left = {name: each for name, each in known.items() if (name, each[0]) not in dead}
        if len(left) < len(known):
            self.checkpoint = {**self.checkpoint, "topics": left}
        return [split.split_id for split in gone]

    def _is_gone(self, split: KafkaSplit) -> bool:
        """Whether its topic has another id, or was missing for long."""
        if split.topic in self._ids:
            return self._ids[split.topic] != split.topic_id
        return self._asked_at - self._missing.get(split.topic, self._asked_at) >= GONE

    def _lost(self, split: KafkaSplit, why: str) -> None:
        text = (
            f"partition {split.partition} of topic {split.topic!r} cannot be read on from offset "
            f"{split.start}: {why}"
        )
        if self._source.on_data_loss == "fail":
            raise DataLossError(f"{text}. on_data_loss='ignore' goes on without")
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)

    def position_at(self, split: KafkaSplit, timestamp: float) -> int | None:
        """The offset before which no record is later than `timestamp` seconds, by Kafka's own timestamps.

        None unless the source was told that these are the event time.
        """
        if self._source.event_time is None:
            return None
        place = split.place
        if self._times is None or self._times[0] != timestamp or place not in self._times[1]:
            places = [*self._ends] if place in self._ends else [place]
            # The ends first: a record that comes between the two requests is not passed over.
            ends = self._offsets.latest(places)
            # Kafka counts milliseconds, and finds the first that is not earlier.
            at = self._offsets.at(places, timestamp + 0.001)
            self._times = timestamp, {each: ends[each] if at[each] < 0 else at[each] for each in places}
        return self._times[1].pop(place)

    # -- commits -----------------------------------------------------------------------------------

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Have the group stand where the rows end that are durable downstream. Does not wait for it."""
        offsets = {}
        for split_id, position in positions.items():
            found = partition_of(split_id)
            if found is not None and isinstance(position, int):
                offsets[found[0]] = position
        self._committing.take(offsets)

    def close(self) -> None:
        """Wait a little for what the group is told."""
        self._committing.close()


class _Committing:
    """Tells a group where it stands, one request at a time; the latest word wins. Thread-safe."""

    def __init__(self, source: KafkaSource, offsets: KafkaOffsets) -> None:
        self._group = source.group_id
        self._clients = source.clients
        self._offsets = offsets
        self._changed = threading.Condition()
        self._next: dict[Partition, int] = {}
        self._busy = False

    def take(self, offsets: Mapping[Partition, int]) -> None:
        """Tell it these, as soon as the request before is answered."""
        if self._group is None or not offsets:
            return
        with self._changed:
            self._next.update(offsets)
            if self._busy:
                return
            self._busy = True
        self._send()

    def close(self) -> None:
        """Wait until it has been told, but not long."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._busy, ENDING):
                log.warning("%r has not answered where group %r stands", self._clients, self._group)

    def _send(self) -> None:
        assert self._group is not None
        with self._changed:
            offsets, self._next = self._next, {}
            if not offsets:
                self._busy = False
                self._changed.notify_all()
                return
        try:
            self._offsets.commit(offsets, self._group, self._answered)
        except Exception as error:
            self._warn(error)
            with self._changed:
                # With what is to be told next.
                self._next = {**offsets, **self._next}
                self._busy = False
                self._changed.notify_all()

    def _answered(self, future: Any) -> None:
        """On the client's thread."""
        error = future.exception()
        if error is not None:
            self._warn(error)
        self._send()

    def _warn(self, error: Exception) -> None:
        log.warning(
            "%r: group %r could not be told where it stands: %s",
            self._clients,
            self._group,
            self._clients.hide(str(error)),
        )


def _known(known: Mapping[str, list[Any]], name: str, topic: Topic) -> int:
    """How many partitions of a topic are known: none of one that was made again."""
    topic_id, count = known.get(name, (topic.topic_id, 0))
    return int(count) if topic_id == topic.topic_id else 0


def beginning() -> Checkpoint:
    """What is known before the first look."""
    return {"topics": {}, "waiting": [], "begun": False}


__all__ = ["Checkpoint", "KafkaEnumerator", "beginning"]
