"""The partitions of a read and their splits, by rule: the source's own, or else load. Pure; any thread.

Spark asks a Python data source for no preferred machines, so that nearness has no say here; where splits are
given out by need, it has (`SplitEnumerator.choose`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TypeVar

from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)


def pack(splits: Sequence[S], most: int, assigned_to: Callable[[S], int | None]) -> list[list[S]]:
    """Deal `splits` out to at most `most` partitions, none of them empty; each keeps their order.

    A split for which `assigned_to` gives a number goes to the partition of that number, modulo `most`. The
    others go, the largest first, to whichever has least to read: by bytes if all splits know theirs, else by
    rows, else by their number (the greedy rule for scheduling of Graham, 1969). Pieces of one split, of which
    there are at most `most`, go to different partitions: a reader has a split once.
    """
    sizes = _sizes(splits)
    rules = [assigned_to(split) for split in splits]
    ruled = any(rule is not None for rule in rules)
    count = most if ruled else min(most, max(1, len(splits)))
    chosen: list[list[int]] = [[] for _ in range(count)]
    for at, rule in enumerate(rules):
        if rule is not None:
            chosen[rule % most].append(at)
    heap = [(sum(sizes[at] for at in places), number) for number, places in enumerate(chosen)]
    heapq.heapify(heap)
    held: set[tuple[str, int]] = set()
    free = [at for at, rule in enumerate(rules) if rule is None]
    for at in sorted(free, key=lambda at: -sizes[at]):
        split_id, passed = splits[at].split_id, []
        while (split_id, heap[0][1]) in held:
            passed.append(heapq.heappop(heap))
        load, number = heap[0]
        held.add((split_id, number))
        chosen[number].append(at)
        heapq.heapreplace(heap, (load + sizes[at], number))
        for each in passed:
            heapq.heappush(heap, each)
    return [[splits[at] for at in sorted(places)] for places in chosen if places]


def _sizes(splits: Sequence[S]) -> list[int]:
    for sizes in ([split.nbytes for split in splits], [split.rows for split in splits]):
        if None not in sizes:
            # One that says 0 is a split all the same.
            return [(size or 0) + 1 for size in sizes]
    return [1] * len(splits)


def cut(splits: Sequence[S], least: int, advance: Callable[[S, ReadLimit], S | None]) -> list[S]:
    """Cut `splits` until there are about `least`, as far as `advance` can cut them. All of them is the same.

    Of one split there are at most `least` pieces.

    The pieces of a split are as large as their share of all rows, or bytes; one whose size nobody knows is
    left whole.
    """
    if len(splits) >= least:
        return list(splits)
    by_rows = all(split.rows is not None for split in splits)
    sizes = [(split.rows if by_rows else split.nbytes) or 0 for split in splits]
    whole = sum(sizes)
    found: list[S] = []
    for rest, size in zip(splits, sizes, strict=True):
        pieces = -(-least * size // whole) if whole else 1
        share = max(1, -(-size // max(1, pieces)))
        limit = ReadLimit(rows=share) if by_rows else ReadLimit(nbytes=share)
        for _ in range(pieces - 1):
            front = advance(rest, limit)
            if front is None or front.stop == rest.stop:
                break
            found.append(front)
            rest = rest.starting_at(front.stop)
        found.append(rest)
    return found
