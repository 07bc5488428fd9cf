"""Forms of structured output: how a service is asked for an answer of a type, and which form it knows.

`Form` is a value. A `FormSearch` is for the loops on which one client is open, a `Walk` for one call.
"""

# Services that speak OpenAI's language refuse `response_format`, know one of its kinds, refuse a schema that
# says more than theirs, or ignore it all without a word. A table of products would be wrong after their next
# release, so requests try the forms, the strictest first.
#
# A refusal is judged by the form that its request was sent in. While one call learns something, others are in
# flight that were sent before: they are asked again in the form that is known by now. Many calls begin at
# once, and each would walk through all forms; so one of them does, and those that were refused beside it wait
# for what it finds.
#
# One refusal does not decide: it may have been a fault that has passed. The next row after a weaker form has
# fitted looks at the stronger ones once more, and so does a row now and then, for services are changed while
# a process lives. How often is a number of rows and not a time: what it costs is a share of what the job
# costs, however fast that is.
#
# What is refused in all forms alike is no matter of the form. A service that refuses every row so, for a
# field of `body` that it does not know, is not asked four times a row.

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from pillarbox.clients.answers import Answer
from pillarbox.wire import Kind, may_refuse_form, read_error

STRUCTURES = ("auto", "json_schema", "json_object", "prompt")

ASK_FOR_SCHEMA_TEXT = "Answer with one JSON object that fits this JSON schema, and with nothing else:\n"

LOOK_AFTER = 256
"""Rows in a form that is not the strictest, after which one looks at the stricter ones; twice as many each
time. The first look is at the next row."""
SUSPECT_AFTER = 4
"""Refusals, or replies that ignore it, in a row in a form that had worked, after which it may be to blame."""
IGNORED_AFTER = 2
"""Rows with a reply that is not JSON, after which the service is one that ignores this kind of form."""
VAIN_AFTER = 3
"""Rows refused alike in all forms, after which most rows refused so are tried in one form only."""
TRY_EACH = 8
"""One of so many of these still is tried in all: the words may be too few to tell causes apart."""
MAX_COMPARED = 400
"""Characters of a refusal that tell its cause."""
MAY_NAME_FORM = frozenset({Kind.REFUSED_ROW, Kind.REFUSED_ALL, Kind.FAILED})
"""Kinds of refusals that are of the form where they name it; others are of load, of size or of accounts."""
WORDS_OF_FORMS = (b"response_format", b"json_schema", b"json_object", b"guided_json", b"structured output")
"""Parts of a refusal that name the form, whatever the status: llama-cpp-python's is 500."""

_NUMBERS = re.compile(r"\d+")


class Form(NamedTuple):
    """One way to ask for an answer of a type.

    kind: "json_schema", "json_object" or "prompt". response_format: of the request, or None. instruction:
    what the prompt says besides, or nothing.
    """

    kind: str
    response_format: dict[str, Any] | None
    instruction: str

    def extended(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """`messages`, of which the last is the question, with the instruction."""
        if not self.instruction:
            return messages
        *before, question = messages
        return [*before, {**question, "content": f"{question['content']}\n\n{self.instruction}"}]


def forms_of(answer: Answer, structure: str) -> list[Form]:
    """The forms that `structure`, one of `STRUCTURES`, stands for, the strictest first."""
    instruction = ASK_FOR_SCHEMA_TEXT + json.dumps(answer.schema, ensure_ascii=False)

    def by_schema(schema: dict[str, Any], said: str) -> Form:
        described = {"name": answer.name, "schema": schema, "strict": answer.is_strict}
        return Form("json_schema", {"type": "json_schema", "json_schema": described}, said)

    schemas = [by_schema(answer.schema, "")]
    if answer.plain_schema != answer.schema:
        # What the service does not hold to stands in the prompt.
        schemas.append(by_schema(answer.plain_schema, instruction))
    json_object = {"type": "json_object"}
    forms = [
        *schemas,
        # Some services obey a schema here, in particular llama.cpp's.
        Form("json_object", {**json_object, "schema": answer.schema}, instruction),
        Form("json_object", json_object, instruction),
        Form("prompt", None, instruction),
    ]
    return [form for form in forms if structure in ("auto", form.kind)]


class FormSearch:
    """The form in which one address is asked, of several of these kinds, the strictest first."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        self.known: int | None = None
        """The form that rows are asked in: an answer in it has fitted."""
        self.leader: asyncio.Future[None] | None = None
        """Done when the call has ended that goes through the forms for others."""
        self._rows = 0
        self._look_after = 1
        # In a row, of the form that is known.
        self._suspicions = 0
        # By kind: rows that the service took, and whose replies were not JSON at all.
        self._ignoring: Counter[str] = Counter()
        self._vain: tuple[Any, ...] | None = None
        self._vain_rows = 0

    def first(self) -> tuple[int, bool]:
        """The form of the next row, and whether the row looks at stricter ones than the known."""
        if self.known == 0:
            return 0, False
        best = self._best()
        if self.known is None:
            return best, False
        self._rows += 1
        if self.known <= best or self._rows < self._look_after:
            return self.known, False
        self._rows, self._look_after = 0, max(LOOK_AFTER, 2 * self._look_after)
        return best, True

    def again(self, form: int, is_json: bool) -> int:
        """The form of a row whose last reply, asked for in `form`, did not fit.

        is_json: it was JSON at least. Otherwise the service may have ignored the form.
        """
        if self.known is not None:
            return self.known
        return form if is_json else self._best(self.kinds[form])

    def _best(self, ignored: str | None = None) -> int:
        """The strictest form that the service is not known to ignore; ignored: a kind that it may ignore."""
        left = (
            place
            for place, kind in enumerate(self.kinds)
            if kind != ignored and self._ignoring[kind] < IGNORED_AFTER
        )
        return next(left, len(self.kinds) - 1)

    def blames(self, form: int, error: BaseException) -> bool:
        """Return True if `error` of a request in `form` may be of the form."""
        reading = read_error(error)
        names_form = _names_form(error) and reading.kind in MAY_NAME_FORM
        if form != self.known:
            return names_form or may_refuse_form(reading, is_fresh=True)
        if not names_form and not may_refuse_form(reading, is_fresh=False):
            return False
        self._suspicions += 1
        return names_form or self._suspicions >= SUSPECT_AFTER

    def is_in_vain(self, error: BaseException) -> bool:
        """Return True if a row that was refused with `error` would most probably be in all other forms."""
        if self._vain != _words_of(error):
            return False
        # Of a status that has other causes, most often, one such row is enough.
        enough = VAIN_AFTER if may_refuse_form(read_error(error), is_fresh=False) else 1
        if self._vain_rows < enough:
            return False
        self._vain_rows += 1
        return self._vain_rows % TRY_EACH != 0

    def refused_in_all(self, errors: Sequence[BaseException]) -> None:
        """A row was refused in all forms, with these errors."""
        words = {_words_of(error) for error in errors}
        if len(words) == 1:
            self._vain_rows = self._vain_rows + 1 if words == {self._vain} else 1
            self._vain = words.pop()

    def fitted(self, form: int) -> None:
        """An answer in `form` has fitted."""
        self._vain, self._vain_rows = None, 0
        self._ignoring.pop(self.kinds[form], None)
        if form == self.known:
            self._suspicions = 0
        elif self.known is None or form < self.known or self._suspicions >= SUSPECT_AFTER:
            self.known, self._suspicions = form, 0
            self._rows, self._look_after = 0, 1

    def was_ignored(self, form: int) -> None:
        """A reply in `form` was not JSON at all."""
        if form == self.known:
            self._suspicions += 1
            if self._suspicions < SUSPECT_AFTER:
                return
            self.known, self._suspicions = None, 0
            self._ignoring[self.kinds[form]] = IGNORED_AFTER
        else:
            self._ignoring[self.kinds[form]] += 1


class Walk:
    """The forms that one call goes through, from `form` on, which is the present one.

    is_look: it looks at all stricter forms than the one that is known.
    """

    __slots__ = ("_errors", "_is_look", "_led", "_search", "form")

    def __init__(self, search: FormSearch, form: int, is_look: bool = False) -> None:
        self._search = search
        self.form = form
        self._is_look = is_look
        self._errors: dict[int, BaseException] = {}
        self._led: asyncio.Future[None] | None = None

    async def refused(self, error: BaseException) -> BaseException | None:
        """Go on to the next form after a refusal with `error`; returns the error of the row if there is none.

        Waits while another call goes through the forms.
        """
        search = self._search
        self._errors[self.form] = error
        if not search.blames(self.form, error):
            return error
        while search.known is None and self._led is None:
            if not await self._waits():
                self._led = search.leader = asyncio.get_running_loop().create_future()
        if search.known is None and len(self._errors) == 1 and search.is_in_vain(error):
            return error
        following = self._next()
        if following is None:
            if search.known is None:
                search.refused_in_all([*self._errors.values()])
            return self._last_word(error)
        self.form = following
        return None

    async def _waits(self) -> bool:
        """Wait for the call that leads, if there is one on this loop; False if there is none."""
        leader = self._search.leader
        if leader is None or leader.done() or leader.get_loop() is not asyncio.get_running_loop():
            return False
        await asyncio.shield(leader)
        return True

    def _next(self) -> int | None:
        known = self._search.known
        weaker = [*range(self.form + 1, len(self._search.kinds))]
        if known is not None and known not in self._errors:
            # What another call has found out meanwhile comes first. A look goes through all stricter ones.
            weaker = [*(place for place in weaker if self._is_look and place < known), known]
        return next((place for place in weaker if place not in self._errors), None)

    def _last_word(self, error: BaseException) -> BaseException:
        """The error that says best what is wrong: that of the form which is known, else the first."""
        known = self._search.known
        if known is not None and known in self._errors:
            return self._errors[known]
        return next(iter(self._errors.values()), error)

    def fitted(self) -> None:
        """The answer has fitted."""
        self._search.fitted(self.form)

    def was_ignored(self) -> None:
        """The reply was not JSON at all."""
        self._search.was_ignored(self.form)

    def end(self) -> None:
        """The call is over: another one may go through the forms."""
        if self._led is not None:
            if self._search.leader is self._led:
                self._search.leader = None
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
