"""Lost entries of a stream are known: positions and counts, against a model that remembers all."""

from __future__ import annotations

import random

import pytest

from pillarbox.sources.connectors.redis_streams import (
    FIRST,
    LAST_SEQUENCE,
    EntryId,
    Position,
    StreamState,
)


class Model:
    """A stream that remembers what it had."""

    def __init__(self) -> None:
        self.left: list[EntryId] = []
        self.last = FIRST
        self.added = 0
        self.deleted = FIRST

    @property
    def state(self) -> StreamState:
        first = self.left[0] if self.left else None
        return StreamState(len(self.left), first, self.last, self.added, self.deleted)

    def add(self, gap: int) -> None:
        self.last = EntryId(self.last.ms + gap, self.last.sequence + (gap == 0))
        self.left.append(self.last)
        self.added += 1

    def trim(self, keep: int) -> list[EntryId]:
        cut = max(0, len(self.left) - keep)
        gone, self.left = self.left[:cut], self.left[cut:]
        return gone

    def delete(self, at: int) -> EntryId:
        gone = self.left.pop(at)
        self.deleted = max(self.deleted, gone)
        return gone


@pytest.mark.parametrize("seed", range(40))
def test_loss_is_said_when_trimming_has_overtaken_the_reader_and_never_otherwise(seed: int) -> None:
    draw = random.Random(seed)
    stream, position, unread_gone = Model(), Position(), 0
    said = 0
    for _ in range(60):
        what = draw.random()
        if what < 0.5:
            stream.add(draw.choice([0, 0, 1, 5]))
        elif what < 0.65:
            unread_gone += sum(gone >= position.next for gone in stream.trim(draw.randrange(6)))
        else:
            missing = position.missing(stream.state)
            if position != Position():
                assert (missing is not None) == (unread_gone > 0)
            if unread_gone and position.added is not None:
                number = "1 entry was" if unread_gone == 1 else f"{unread_gone} entries were"
                assert missing == f"{number} trimmed or deleted before they were read"
                said += 1
            position, unread_gone = position.settled(stream.state), 0
            rows = [each for each in stream.left if each >= position.next][: draw.randrange(1, 5)]
            if rows:
                position = position.behind(rows[-1], len(rows), stream.state)
    assert position.added is not None or position == Position()
    assert said or seed


@pytest.mark.parametrize("seed", range(40))
def test_loss_is_never_overlooked_where_single_entries_are_deleted_and_a_number_is_the_right_one(
    seed: int,
) -> None:
    draw = random.Random(seed)
    stream, position = Model(), Position()
    trimmed: list[EntryId] = []
    gone: list[EntryId] = []
    for _ in range(60):
        what = draw.random()
        if what < 0.5:
            stream.add(draw.choice([0, 1]))
        elif what < 0.6:
            trimmed += stream.trim(draw.randrange(6))
        elif what < 0.7 and stream.left:
            gone.append(stream.delete(draw.randrange(len(stream.left))))
        else:
            missing = position.missing(stream.state)
            if position != Position():
                if any(each >= position.next for each in trimmed):
                    assert missing is not None
                if missing is not None and not missing.startswith("some entries may have been"):
                    number = sum(each >= position.next for each in (*gone, *trimmed))
                    assert missing.startswith("1 entry was" if number == 1 else f"{number} entries were")
            settled = position.settled(stream.state)
            # A count that was set right says no more what has been said.
            trimmed, gone = [], [] if settled != position else gone + trimmed
            position = settled
            rows = [each for each in stream.left if each >= position.next][: draw.randrange(1, 5)]
            if rows:
                position = position.behind(rows[-1], len(rows), stream.state)


def test_a_stream_that_was_made_anew_is_a_loss() -> None:
    stream = Model()
    for _ in range(3):
        stream.add(1)
    anew = Model()
    anew.add(100)
    assert Position(stream.last.next, 3).missing(anew.state) == "the stream was deleted and made anew"


def test_a_place_where_nothing_has_been_yet_is_no_loss() -> None:
    stream = Model()
    for _ in range(3):
        stream.add(1)
    ahead = Position(EntryId(50, 0))
    assert ahead.settled(stream.state) == ahead
    assert ahead.settled(stream.state).missing(stream.state) is None
    while stream.last < EntryId(49, 0):
        stream.add(1)
    # The last id before it: now the entries that are gone can be counted.
    assert Position(stream.last.next).settled(stream.state).added == stream.state.added


def test_without_counts_nothing_is_said() -> None:
    state = StreamState(1, EntryId(9, 0), EntryId(9, 0), None, FIRST)
    assert Position(EntryId(5, 0)).missing(state) is None
    assert Position(EntryId(5, 0), 4).settled(state) == Position(EntryId(5, 0))


@pytest.mark.parametrize("text", ["1-2", "1-2@3", "0-0@0", f"7-{LAST_SEQUENCE}"])
def test_a_position_reads_what_it_wrote(text: str) -> None:
    assert str(Position.parse(text)) == text


@pytest.mark.parametrize("text", ["", "-", "a-1", "1-b", "1-2@", "1-2@x", "-1-1"])
def test_what_is_no_position_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        Position.parse(text)


def test_ids_have_neighbours() -> None:
    assert EntryId(1, LAST_SEQUENCE).next == EntryId(2, 0)
    assert EntryId(2, 0).before == EntryId(1, LAST_SEQUENCE)
    assert EntryId(0, 0).before == EntryId(0, 0)
    assert EntryId.parse(b"5") == EntryId(5, 0)


def test_both_forms_of_redis_answers_are_read() -> None:
    answer = {
        b"length": 1,
        b"last-generated-id": b"3-1",
        b"max-deleted-entry-id": b"2-1",
        b"entries-added": 3,
        b"first-entry": [b"3-1", [b"a", b"b"]],
    }
    flat = [part for pair in answer.items() for part in pair]
    assert (
        StreamState.parse(answer)
        == StreamState.parse(flat)
        == StreamState(1, EntryId(3, 1), EntryId(3, 1), 3, EntryId(2, 1))
    )
