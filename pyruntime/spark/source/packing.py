"""Which partition of a read gets which splits, by rule: the source's own, or else load. Pure; any thread.

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
    chosen: list[list[int]] = [[] for _ in range(min(most, max(1, len(splits))))]
    size = _size_of(splits)
    loads = [0] * most
    ruled: dict[int, list[int]] = {}
    free = []
    for at, split in enumerate(splits):
        to = assigned_to(split)
        if to is None:
            free.append(at)
        else:
            ruled.setdefault(to % most, []).append(at)
            loads[to % most] += size(split)
    if ruled:
        chosen = [ruled.get(number, []) for number in range(most)]
    heap = [(loads[number], number) for number in range(len(chosen))]
    heapq.heapify(heap)
    held: set[tuple[str, int]] = set()
    for at in sorted(free, key=lambda at: -size(splits[at])):
        split_id = splits[at].split_id
        passed = []
        while (split_id, heap[0][1]) in held:
            passed.append(heapq.heappop(heap))
        load, number = heap[0]
        held.add((split_id, number))
        chosen[number].append(at)
        heapq.heapreplace(heap, (load + size(splits[at]), number))
        for each in passed:
            heapq.heappush(heap, each)
    return [[splits[at] for at in sorted(places)] for places in chosen if places]


def _size_of(splits: Sequence[S]) -> Callable[[S], int]:
    if all(split.nbytes is not None for split in splits):
        # One that says 0 is a split all the same.
        return lambda split: (split.nbytes or 0) + 1
    if all(split.rows is not None for split in splits):
        return lambda split: (split.rows or 0) + 1
    return lambda split: 1


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
    for split, size in zip(splits, sizes, strict=True):
        pieces = -(-least * size // whole) if whole else 1
        share = max(1, -(-size // max(1, pieces)))
        limit = ReadLimit(rows=share) if by_rows else ReadLimit(nbytes=share)
        rest = split
        for _ in range(pieces - 1):
            front = advance(rest, limit)
            if front is None or front.stop == rest.stop:
                break
            found.append(front)
            rest = rest.starting_at(front.stop)
        found.append(rest)
    return found
