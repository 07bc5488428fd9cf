"""Where lines begin and end in a file: blocks of whole lines, and cuts at a number of lines or bytes.

Pure functions over a function that reads bytes; whoever has the file calls them. The rule is Hadoop's for
text: a range of bytes has the lines that begin in it, so ranges that meet anywhere have each line once.

A `quote` (one byte) says that a newline within quotes ends no line, as in CSV (RFC 4180). Whether a newline
is within quotes is known from the quotes in front of it, so only from a place where a line is known to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pillarbox.sources.connectors.files.listing import CutFileError

PROBE = 64 * 1024
"""Bytes that are read to find the end of a line."""

ReadAt = Callable[[int, int], bytes]
"""At most so many bytes, from this offset on; fewer only at the end of the file."""
Read = Callable[[int], bytes]
"""The next bytes, at most so many; none at the end of the file."""


def line_start(read_at: ReadAt, position: int, size: int) -> int:
    """Where the first line begins at `position` or behind it; `size`, that of the file, if none does."""
    if position <= 0:
        return 0
    # A line begins at `position` if the byte in front of it ends one.
    at, step = position - 1, PROBE
    while at < size:
        found = read_at(min(step, size - at), at)
        if not found:
            break
        newline = found.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(found)
        step = min(2 * step, 2**26)
    return size


def line_start_before(read_at: ReadAt, least: int, position: int) -> int | None:
    """Where the last line begins that does at `position` or before, but behind `least`; None if none does."""
    end = position
    while end > least:
        begin = max(least, end - PROBE)
        newline = read_at(end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return None


def whole_lines(data: bytes, quote: bytes | None) -> int:
    """How many bytes in front of `data`, where a line begins, are whole lines."""
    end = data.rfind(b"\n") + 1
    if quote is None:
        return end
    odd = data.count(quote, 0, end) % 2
    while odd:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        odd ^= data.count(quote, begin, end) % 2
        end = begin
    return end


def reading(read_at: ReadAt, at: int) -> Read:
    """What reads on from `at`."""

    def read(wanted: int) -> bytes:
        nonlocal at
        data = read_at(wanted, at)
        at += len(data)
        return data

    return read


def blocks(
    read: Read, position: int, end: int | None, nbytes: int, quote: bytes | None = None
) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, of about `nbytes` or one line, each with the position behind it.

    `read` gives what stands at `position`, where a line begins. `end`: where the last line ends; None is the
    end of the file. Raises EOFError if the file ends before `end`.
    """
    held = b""
    while True:
        # More and more where a line is long, so that it is not looked through again and again.
        want = max(nbytes - len(held), len(held), 1)
        if end is not None:
            want = min(want, end - position - len(held))
        more = read(want) if want else b""
        data = held + more if held else more
        if more and position + len(data) != end:
            whole = whole_lines(data, quote)
        elif more or end is None or not want:
            whole = len(data)
        else:
            raise CutFileError(f"the file ends at byte {position + len(held)}, before byte {end}")
        if whole:
            position += whole
            yield data[:whole], position
        elif not more:
            return
        held = data[whole:]


def after_lines(data: bytes, count: int, quote: bytes | None) -> tuple[int, int]:
    """How many lines of `data`, at most `count`, and how many bytes they take. A line begins at its front."""
    if quote is None:
        found = data.count(b"\n")
        if found < count:
            return found, len(data)
        # By halves: no step for each line.
        at, width = 0, len(data)
        left = count
        while width > 1:
            half = width // 2
            in_half = data.count(b"\n", at, at + half)
            if in_half < left:
                left -= in_half
                at += half
                width -= half
            else:
                width = half
        return count, at + 1
    at = found = 0
    for number, part in enumerate(data.split(quote)):
        if number % 2 == 0:
            lines, taken = after_lines(part, count - found, None)
            found += lines
            if found == count:
                return count, at + taken
        at += len(part) + 1
    return found, len(data)


def cut(
    read_at: ReadAt,
    start: int,
    end: int,
    *,
    rows: int | None,
    nbytes: int | None,
    quote: bytes | None,
    size: int,
) -> tuple[int, int | None]:
    """Where to stop to have at most so many lines and bytes from `start`, where a line begins; one at least.

    `end`: where the last line ends that may be read, behind `start`; `size`: that of the file. Also how many
    lines there are up to there, if `rows` is given.
    """
    most = None if nbytes is None or start + nbytes >= end else start + nbytes
    if most is not None and quote is None:
        found = line_start_before(read_at, start, most)
        # The first line may be longer than all that is allowed.
        end = line_start(read_at, start + 1, size) if found is None else found
        most = None
    if rows is None and most is None:
        return end, None
    position = start
    lines = 0
    for block, behind in blocks(reading(read_at, start), start, end, 2**20, quote):
        part = block
        if most is not None and behind > most:
            part = block[: whole_lines(block[: most - position], quote)]
            if not part and position == start:
                part = block[: after_lines(block, 1, quote)[1]]
        left = len(part) if rows is None else max(1, rows) - lines
        found_here, taken = after_lines(part, left, quote)
        if taken < len(part) or len(part) < len(block) or (rows is not None and found_here == left):
            return position + taken, lines + found_here
        # The last line of a file need not end with a newline.
        lines += found_here + (not block.endswith(b"\n"))
        position = behind
    return position, lines
