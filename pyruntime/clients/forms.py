"""The form in which a service is asked, of several that say the same: the one that it answers in.

`Forms` is for the loops on which one client is open, a `Walk` for one call. Both are in memory alone.
"""

# Services that speak one language differ in what they refuse and in what they ignore without a word, and none
# can be asked beforehand. A table of products would be wrong after their next release, so requests try the
# forms, the best first.
#
# A refusal is judged by the form that its request was sent in: what was in flight while another call learned
# something is asked again in the form that is known by now. Many calls begin at once, and each would walk
# through all forms; so one of them does, and those that were refused beside it wait for what it finds.
#
# One refusal does not decide: it may have been a fault that has passed, and services are changed while a
# process lives. So a call looks at the better forms after a while, and each time that it finds nothing the
# while doubles. It is a number of calls and not a time: a share of what the job costs, however fast that is.
# A kind that is ignored is not looked at: that costs a reply, and perhaps its row.
#
# What is refused in all forms alike is no matter of the form. A service that refuses every call so, for a
# field that it does not know, is not asked in all forms each time.

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pillarbox.wire import Kind, may_refuse_form, read_error

LOOK_AFTER = 256
"""Calls in a form that is not the best, after which one looks at the better ones; twice as many each time."""
SUSPECT_AFTER = 4
"""Refusals in a row in the form that is known, or answers that ignore it, after which it may be to blame."""
IGNORED_AFTER = 2
"""Calls whose form was ignored, after which the service is one that ignores this kind of form."""
IN_VAIN = 3
"""Calls refused alike in all forms, after which most calls refused so are tried in one form only."""
EACH = 8
"""One of so many of these still is tried in all: the words may be too few to tell causes apart."""
MAX_COMPARED = 400
"""Characters of a refusal that tell its cause."""
MAY_NAME_FORM = frozenset({Kind.REFUSED_ROW, Kind.REFUSED_ALL, Kind.FAILED})
"""Kinds of refusals that are of the form where they name it; others are of load, of size or of accounts."""
WORDS_OF_FORMS = (
    *(b"response_format", b"json_schema", b"json_object", b"guided_json", b"structured output"),
    *(b"encoding_format", b"embed_dtype"),
    *(b"text.format", b"output_config", b"output_format", b"tool_choice"),
    *(b"responseJsonSchema", b"responseSchema", b"response_schema", b"response_json_schema"),
    *(b"response_mime_type", b"responseMimeType"),
)
"""Parts of a refusal that name the form, whatever the status: llama-cpp-python's is 500."""

_NUMBERS = re.compile(r"\d+")


class Forms:
    """The form in which one address is asked, of several, the best first: the best that it answers in.

    kinds: of each form; a service ignores a kind or obeys it. first_look: calls after which the first one
    looks whether the refusals of better forms hold: a weaker form may be worse for each call, or just longer.
    """

    def __init__(self, kinds: Sequence[str], first_look: int = LOOK_AFTER) -> None:
        self.kinds = tuple(kinds)
        self.known: int | None = None
        """The place of the form that calls begin in: an answer in it was right."""
        self.leader: asyncio.Future[None] | None = None
        """Done when the call has ended that goes through the forms for others."""
        self._first_look = self._look_after = first_look
        self._calls = 0
        # In a row, of the form that is known.
        self._suspicions = 0
        # By kind: calls that the service took, and whose answers were not of this kind.
        self._ignoring: Counter[str] = Counter()
        self._vain: tuple[Any, ...] | None = None
        self._vain_calls = 0

    def walk(self, former: int | None = None) -> Walk:
        """Begin a call. former: the form that it goes on in if none is known, where it was asked before."""
        known, best = self.known, self._best()
        if known is None:
            return Walk(self, best if former is None else former)
        if former is None and known > best:
            self._calls += 1
            if self._calls >= self._look_after:
                self._calls, self._look_after = 0, max(LOOK_AFTER, 2 * self._look_after)
                return Walk(self, best, is_look=True)
        return Walk(self, known)

    @property
    def is_settled(self) -> bool:
        """True if a form is known, and nothing speaks against it."""
        return self.known is not None and self._suspicions < SUSPECT_AFTER

    def has_worked(self, form: int) -> bool:
        """Return True if `form` is the one that is known, and nothing speaks against it."""
        return form == self.known and self.is_settled

    def is_ignored(self, form: int) -> bool:
        """Return True if the service ignores this kind of form; the last is for those that ignore all."""
        return form < len(self.kinds) - 1 and self._ignoring[self.kinds[form]] >= IGNORED_AFTER

    def _best(self) -> int:
        if not self._ignoring:
            return 0
        return next(form for form in range(len(self.kinds)) if not self.is_ignored(form))

    def blames(self, form: int, error: BaseException) -> bool:
        """Return True if `error` of a request in `form` may be of the form."""
        reading, is_fresh = read_error(error), not self.has_worked(form)
        names_form = _names_form(error) and reading.kind in MAY_NAME_FORM
        # An error object without a code, in an answer of success, may be of anything.
        may_be_any = is_fresh and reading.status is None and reading.kind is Kind.FAILED
        is_paid = getattr(error, "usage", None) is not None
        if is_paid or not (names_form or may_be_any or may_refuse_form(reading, is_fresh=is_fresh)):
            return False
        if is_fresh:
            return True
        self._suspicions += 1
        return names_form or self._suspicions >= SUSPECT_AFTER

    def is_in_vain(self, error: BaseException) -> bool:
        """Return True if a call that was refused with `error` would most probably be in all other forms."""
        if self.is_settled or self._vain_calls < IN_VAIN or self._vain != _words_of(error):
            return False
        self._vain_calls += 1
        return self._vain_calls % EACH != 0

    def refused_in_all(self, errors: Sequence[BaseException]) -> None:
        """A call was refused in all forms, with these errors."""
        words = {_words_of(error) for error in errors}
        if len(words) == 1 and len(errors) > 1 and not self.is_settled:
            self._vain_calls = self._vain_calls + 1 if words == {self._vain} else 1
            self._vain = words.pop()

    def answered(self, form: int) -> None:
        """An answer in `form` was right."""
        self._vain, self._vain_calls = None, 0
        if self._ignoring:
            self._ignoring.pop(self.kinds[form], None)
        if form == self.known:
            self._suspicions = 0
        elif self.known is None or form < self.known or not self.is_settled:
            self.known, self._suspicions = form, 0
            self._calls, self._look_after = 0, self._first_look

    def was_ignored(self, form: int) -> None:
        """An answer was not what `form` had asked for."""
        if form != self.known:
            self._ignoring[self.kinds[form]] += 1
            return
        self._suspicions += 1
        if self._suspicions >= SUSPECT_AFTER:
            self.known, self._suspicions = None, 0
            self._ignoring[self.kinds[form]] = IGNORED_AFTER


class Walk:
    """The forms that one call goes through, from `form` on, which is the present one.

    is_look: it looks at all better forms than the one that is known.
    """

    __slots__ = ("_forms", "_is_look", "_led", "_tried", "form")

    def __init__(self, forms: Forms, form: int, is_look: bool = False) -> None:
        self._forms, self.form, self._is_look = forms, form, is_look
        # The errors; None for a form that was ignored.
        self._tried: dict[int, BaseException | None] = {}
        self._led: asyncio.Future[None] | None = None

    async def refused(self, error: BaseException) -> BaseException | None:
        """Go on to the next form after a refusal with `error`; return the error of the call if there is none.

        Waits while another call goes through the forms.
        """
        forms = self._forms
        self._tried[self.form] = error
        if not forms.blames(self.form, error):
            return error
        while self._next() is not None and not forms.is_settled and self._led is None:
            if not await self._waits():
                self._led = forms.leader = asyncio.get_running_loop().create_future()
        if len(self.errors) == 1 and forms.is_in_vain(error):
            return error
        if self._goes_on():
            return None
        forms.refused_in_all(self.errors)
        return self.error

    async def _waits(self) -> bool:
        """Wait for the call that leads, if there is one on this loop; False if there is none."""
        leader = self._forms.leader
        if leader is None or leader.done() or leader.get_loop() is not asyncio.get_running_loop():
            return False
        await asyncio.shield(leader)
        return True

    def ignored(self) -> bool:
        """The service did not do what the form asks for. Go on to the next one; False if none is left.

        A form that has worked until now stays: others may be worse.
        """
        self._tried[self.form] = None
        self._forms.was_ignored(self.form)
        return self.form != self._forms.known and self._goes_on()

    def _goes_on(self) -> bool:
        following = self._next()
        self.form = self.form if following is None else following
        return following is not None

    def _next(self) -> int | None:
        forms, known, tried = self._forms, self._forms.known, self._tried
        order = weaker = [*range(self.form + 1, len(forms.kinds))]
        if known is not None:
            # What another call has found out meanwhile comes first. A look goes through all better ones.
            looks = [form for form in weaker if self._is_look and form < known]
            order = [*looks, known, *weaker, *range(self.form)]
        ignored = {forms.kinds[form] for form, error in tried.items() if error is None}
        left = (form for form in order if form not in tried and not forms.is_ignored(form))
        return next((form for form in left if forms.kinds[form] not in ignored), None)

    @property
    def errors(self) -> list[BaseException]:
        """The refusals, in order."""
        return [error for error in self._tried.values() if error is not None]

    @property
    def error(self) -> BaseException | None:
        """The refusal that says most: of the known form, else the first of equal ones, else the last."""
        known, errors = self._forms.known, self.errors
        own = None if known is None else self._tried.get(known)
        if own is not None or not errors:
            return own
        return errors[0 if len(set(map(_words_of, errors))) == 1 else -1]

    def answered(self) -> None:
        """The answer is right."""
        self._forms.answered(self.form)

    def end(self) -> None:
        """The call is over: another one may go through the forms."""
        if self._led is None:
            return
        if self._forms.leader is self._led:
            self._forms.leader = None
        if not self._led.done():
            self._led.set_result(None)


def _names_form(error: BaseException) -> bool:
    body = getattr(error, "body", b"")
    return isinstance(body, bytes) and any(word in body for word in WORDS_OF_FORMS)


def _words_of(error: BaseException) -> tuple[Any, ...]:
    """The part of a refusal that tells causes apart: its words, without numbers."""
    reading = read_error(error)
    body = getattr(error, "body", b"")
    said = reading.message or body[:MAX_COMPARED].decode(errors="replace")
    return reading.status, reading.code, _NUMBERS.sub("#", said[:MAX_COMPARED])
