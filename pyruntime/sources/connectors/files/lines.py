"""Where lines begin and end in a file: blocks of whole lines, and cuts at a number of lines or bytes.

Pure functions over a function that reads bytes; whoever has the file calls them. The rule is Hadoop's for
text: a range of bytes has the lines that begin in it, so ranges that meet anywhere have each line once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pillarbox.sources.connectors.files.listing import CutFileError

PROBE_BYTES = 64 * 1024
"""Bytes that are read to find the end of a line."""

ReadAt = Callable[[int, int], bytes]
"""At most so many bytes, from this offset on; fewer only at the end of the file."""
Read = Callable[[int], bytes]
"""The next bytes, at most so many; none at the end of the file."""


def line_start(read_at: ReadAt, position: int, size: int) -> int:
    """Return where the first line begins at `position` or behind it; `size`, the file's, if none does."""
    if position <= 0:
        return 0
    # A line begins at `position` if the byte in front of it ends one.
    at, step = position - 1, PROBE_BYTES
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


def line_start_before(read_at: ReadAt, first: int, position: int) -> int | None:
    """Return where the last line begins at `position` or before, but behind `first`; None if none does."""
    end = position
    while end > first:
        begin = max(first, end - PROBE_BYTES)
        newline = read_at(end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return None


def reading(read_at: ReadAt, at: int) -> Read:
    """Return a function that reads on from `at`."""

    def read(wanted: int) -> bytes:
        nonlocal at
        data = read_at(wanted, at)
        at += len(data)
        return data

    return read


def blocks(read: Read, position: int, end: int | None, nbytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines, of about `nbytes` or one line, each with the position behind it.

    `read` gives the bytes from `position` on, where a line begins. `end`: where the last line ends; None is
    the end of the file. Raises EOFError if the file ends before `end`.
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
            whole = data.rfind(b"\n") + 1
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


def after_lines(data: bytes, count: int) -> tuple[int, int]:
    """Return how many lines of `data` end, at most `count`, and how many bytes they take."""
    found = data.count(b"\n")
    if found < count:
        return found, len(data)
    # By halves: no step for each line.
    at, width, left = 0, len(data), count
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


def cut(
    read_at: ReadAt, start: int, end: int, *, rows: int | None, nbytes: int | None, size: int
) -> tuple[int, int | None]:
    """Return where to stop to have at most so many lines and bytes from `start`, but a line at least.

    A line begins at `start`. `end`: where the last line ends that may be read, behind `start`; `size`: that
    of the file. Also returns how many lines there are up to there, if `rows` is given.
    """
    if nbytes is not None and start + nbytes < end:
        found = line_start_before(read_at, start, start + nbytes)
        # The first line may be longer than all that is allowed.
        end = line_start(read_at, start + 1, size) if found is None else found
    if rows is None:
        return end, None
    position = start
    lines, most = 0, max(1, rows)
    for block, behind in blocks(reading(read_at, start), start, end, 2**20):
        counted, taken = after_lines(block, most - lines)
        lines += counted
        if lines == most:
            return position + taken, lines
        # The last line of a file need not end with a newline.
        lines += not block.endswith(b"\n")
        position = behind
    return position, lines
