"""Facts that a client learns of one address of a service: the form of its answers, and how much it takes.

`Sizes` is for the loops on which one client is open; it is in memory alone, and what several loops learn at a
time costs a request at most. For the form see `pillarbox.clients.forms`.
"""

# Services that speak one language differ in what they refuse, and cannot be asked. So facts come from their
# refusals, and each of these is judged by what its request was sent in: while one call learns something,
# others are in flight that were sent before. A fact is not for ever: a refusal may have been a fault that has
# passed, and services are changed while a process lives. So what was refused is tried again after a while, in
# a request of the job, and each time that it is refused again the while doubles. It is a number of requests
# and not a time: what it costs is a share of what the job costs, however fast that is.
#
# Why a limit is learned from what was accepted. A request of 64 texts may be refused for one of them, and its
# words are of no language. But where all its texts are accepted in smaller requests, it was too large: then
# the bounds are known, and requests between them narrow these further. Who has divided it does not matter:
# the operator does, which looks for a bad row anyway, and the client where the service says that it is the
# size. In bytes or in texts? What the refusal says is believed, unless a request as large was accepted.

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean

from pillarbox.clients.forms import LOOK_AFTER, Forms
from pillarbox.clients.json_text import encode_json
from pillarbox.clients.transport import LARGE_BODY_BYTES, AnswerTooLarge
from pillarbox.wire import Kind, read_error

log = logging.getLogger("pillarbox")

NEAR = 1.04
"""Bounds of bytes that are nearer to each other are one limit: texts have lengths of their own."""

MOST_TEXTS = 1 << 30
"""More than a request ever holds."""
FULL = 0.88
"""The part of a request that has to be full in the mean, for calls to be made for one request each."""
ROUNDING = 1e-6
"""The part of a text that a computed number of them may lack."""


class _Limit:
    """Bounds of a limit in one measure: the largest request that is accepted, the smallest that is refused.

    most: of all that were ever accepted. near: bounds of this ratio are one limit. step: the size of one
    text; bounds that differ by it are one limit, too.
    """

    def __init__(self, near: float) -> None:
        self.low = self.most = 0.0
        self.step = 1.0
        self.high = math.inf
        self._near = near

    def accepted(self, size: float) -> None:
        self.most = max(self.most, size)
        self.low = max(self.low, size)
        if size >= self.high:
            # It has been raised, or was none.
            self.high = math.inf

    def refused(self, size: float, part: float) -> None:
        """A request of this size was too large; its parts were accepted, the largest of size `part`."""
        self.high = min(self.high, size)
        if self.low >= self.high:
            self.low = part

    @property
    def is_known(self) -> bool:
        return self.high < math.inf

    @property
    def is_narrow(self) -> bool:
        return self.high <= max(self.low + self.step, self.low * self._near)

    @property
    def safe(self) -> float:
        """The size that requests may have. Within narrow bounds the middle: it narrows them by chance."""
        if not self.is_known:
            return math.inf
        return self.next if self.is_narrow else self.low

    @property
    def next(self) -> float:
        """The size of a request that narrows the limit."""
        return (self.low + self.high) // 2


class Sizes:
    """The size of the requests that a service takes: texts and bytes, as far as its refusals have shown.

    address: for the log, without a query.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._texts = _Limit(near=1.0)
        self._bytes = _Limit(near=NEAR)
        # Of the smallest request that was refused: texts that were neither accepted since nor refused alone.
        self._waiting: set[int] | None = None
        self._waited = 0
        self._refused = self._parts = (0, 0)
        self._is_of_bytes = False
        # The texts of that request, where it was the size for certain, and the client divides it.
        self._dividing = MOST_TEXTS
        self._is_trying = False
        self._since = 0
        self._look_after = LOOK_AFTER
        self._is_told = False
        self._is_vain = False

    def fitting(self, texts: Sequence[str], overhead: Callable[[], int]) -> tuple[int, bool]:
        """The number of texts, the first ones, that the next request is to hold: one at least.

        And True if that is to find out whether so many are taken; `ended` tells of its end then. overhead:
        gives the bytes of a request's body besides its texts.
        """
        of_texts, of_bytes = self._texts, self._bytes
        if not self.is_known:
            # Another call finds out the size, and has got so far.
            return min(len(texts), max(1, self._dividing // 2)), False
        ends = _ends(texts, overhead()) if of_bytes.is_known else []
        self._since += 1
        safe = _count(len(texts), ends, of_texts.safe, of_bytes.safe)
        if safe == len(texts) or self._is_trying or self._waiting is not None:
            return safe, False
        looks = self._since >= self._look_after
        count = len(texts) if looks else _count(len(texts), ends, of_texts.next, of_bytes.next)
        if count == safe:
            return safe, False
        self._is_trying = True
        if looks:
            self._since = 0
            self._look_after *= 2
        return count, True

    @property
    def is_known(self) -> bool:
        """True if a limit is known: requests are divided by it before they are sent."""
        return self._texts.is_known or self._bytes.is_known

    def wanted(self, texts: Sequence[str], overhead: Callable[[], int]) -> float:
        """The number of texts like these that fill a request; infinite where more than that are better.

        They are where more may be tried, and where a limit of bytes meets texts of very different lengths: of
        many texts more requests are full.
        """
        limits = [limit for limit in (self._texts, self._bytes) if limit.is_known]
        if not texts or not all(limit.is_narrow for limit in limits) or self._since >= self._look_after:
            return math.inf
        wanted = self._texts.safe
        if self._bytes.is_known:
            extra = overhead()
            sizes = [end - start for start, end in pairwise([extra, *_ends(texts, extra)])]
            # What is too much for one request would be a second, nearly empty one. So as many as fit with
            # their standard deviation: mean * n + spread * sqrt(n) = bytes.
            mean = fmean(sizes)
            spread = math.sqrt(fmean((size - mean) ** 2 for size in sizes))
            left = max(0.0, self._bytes.safe - extra)
            root = (math.sqrt(spread**2 + 4 * mean * left) - spread) / (2 * mean)
            if root**2 < FULL * left / mean:
                return math.inf
            wanted = min(wanted, math.floor(root**2 + ROUNDING))
        return max(1.0, wanted)

    def ended(self) -> None:
        """The request that was to find something out has ended, one way or the other."""
        self._is_trying = False

    def accepted(self, texts: Sequence[str], nbytes: int) -> None:
        """A request was answered. nbytes: of its body."""
        self._is_vain = False
        self._texts.accepted(len(texts))
        self._bytes.accepted(nbytes)
        if self._waiting is None:
            return
        before = len(self._waiting)
        self._waiting.difference_update(map(hash, texts))
        if len(self._waiting) < before:
            self._parts = max(self._parts[0], len(texts)), max(self._parts[1], nbytes)
        self._waited += 1
        if not self._waiting:
            self._forget()
            self._learn()
        elif self._waited > LOOK_AFTER:
            # Most probably they are not sent again.
            self._forget()

    def _forget(self) -> None:
        self._waiting, self._dividing = None, MOST_TEXTS

    def refused(self, texts: Sequence[str], nbytes: int, error: BaseException) -> None:
        """A request was refused with `error`, perhaps for its size."""
        kind = read_error(error).kind
        if kind is not Kind.REFUSED_ROW and kind is not Kind.REFUSED_SIZE:
            return
        waiting = self._waiting
        if len(texts) == 1:
            if waiting is not None and hash(texts[0]) in waiting:
                # It explains the refusal of all that it was in.
                self._forget()
        elif waiting is None or len(texts) < self._refused[0]:
            self._waiting, self._waited = set(map(hash, texts)), 0
            self._refused, self._parts = (len(texts), nbytes), (0, 0)
            # Nobody refuses small bodies for their bytes; a service of texts says 413 of their number, too.
            is_size = kind is Kind.REFUSED_SIZE and not isinstance(error, AnswerTooLarge)
            self._is_of_bytes = is_size and nbytes >= LARGE_BODY_BYTES
            self._dividing = len(texts) if kind is Kind.REFUSED_SIZE and not self._is_vain else MOST_TEXTS

    def _learn(self) -> None:
        """The texts of the last request that was refused have all been accepted since."""
        texts, nbytes = self._refused
        if self._parts[0] >= texts:
            # Nothing was divided: another form was accepted, or the fault has passed.
            return
        # Where as many texts, or bytes, were accepted before, it is the other measure.
        may_be_texts, may_be_bytes = texts > self._texts.most, nbytes > self._bytes.most
        is_of_bytes = may_be_bytes if may_be_texts != may_be_bytes else self._is_of_bytes
        if is_of_bytes:
            self._bytes.step = nbytes / texts
            self._bytes.refused(nbytes, self._parts[1])
        else:
            self._texts.refused(texts, self._parts[0])
        limit = self._bytes if is_of_bytes else self._texts
        if limit.is_narrow and not self._is_told:
            self._is_told = True
            log.warning(
                "%s refuses requests of %d %s and takes those of %d: they hold no more from now on%s",
                self._address,
                limit.high,
                "bytes" if is_of_bytes else "texts",
                limit.low,
                "" if is_of_bytes else f"; give max_texts={limit.low:.0f} to the client",
            )

    def divides(self, texts: Sequence[str], nbytes: int, error: BaseException) -> bool:
        """Return True if the client itself is to divide a request that was refused: its size is the cause.

        nbytes: of its body, or fewer.
        """
        if len(texts) == 1 or self._is_vain:
            return False
        kind = read_error(error).kind
        if kind is Kind.REFUSED_SIZE:
            return True
        # Sent before the limit was known, or to find it out.
        return kind is Kind.REFUSED_ROW and (
            (self._texts.is_known and len(texts) > self._texts.low)
            or (self._bytes.is_known and nbytes > self._bytes.low)
        )

    def in_vain(self) -> None:
        """Texts alone were refused for their size too: the client divides nothing until one is accepted."""
        self._is_vain = True


def _ends(texts: Sequence[str], overhead: int) -> list[int]:
    """The bytes of a body up to the end of each text."""
    return list(accumulate((len(encode_json(text)) + 1 for text in texts), initial=overhead))[1:]


def _count(texts: int, ends: Sequence[int], most: float, nbytes: float) -> int:
    """The number of texts within both limits, at least one. ends: bytes up to each; empty where not known."""
    within = bisect_right(ends, nbytes) if ends else texts
    return max(1, int(min(texts, within, most)))


class Endpoint:
    """All that is known of one address. forms: names of the forms to ask in, the best first."""

    def __init__(self, address: str, forms: Sequence[str]) -> None:
        self.forms = Forms(forms)
        self.counts_plainly = False
        """True once an answer has counted tokens as the transport reads them, or not at all."""
        self.has_float64 = False
        """True if base64 holds numbers of eight bytes, though four were asked for."""
        self.sizes = Sizes(address)
