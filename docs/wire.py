"""Writes docs/wire.md from the table of `pillarbox.wire_table`.

python docs/wire.py            writes the page
python docs/wire.py check      exits with 1 if the page is another
"""

from __future__ import annotations

import sys
from pathlib import Path

from pillarbox.clients import transport
from pillarbox.wire_table import FORM_STATUSES, NO_FORM_STATUSES, TABLE, TRAITS, Kind, Rule

PAGE = Path(__file__).resolve().parent / "wire.md"

INTRODUCTION = """\
# Answers and errors of services

Each answer, and each error of a call, is read as one *kind*. The kind decides what follows: whether the
row is tried again, whether all calls wait, whether a batch is divided, whether every other row would meet
the same. Both HTTP transports of the clients give the same kind for the same event, and errors of your
own functions are read alike: those of aiohttp, httpx, openai and anthropic, requests, urllib3, urllib,
botocore and gRPC, and your own with attributes `status`, `headers` and `body`. `python docs/wire.py`
writes this page from the table that the code reads by, and a test compares it.

```python
from pillarbox.wire import Kind, is_permanent, read_answer, read_error

refused = read_answer(429, {"Retry-After": "7"}, b'{"error": {"message": "too fast"}}')
assert (refused.kind, refused.retry_after, refused.message) == (Kind.OVERLOADED, 7.0, "too fast")
within = read_answer(200, {}, b'{"error": {"code": 503, "message": "busy"}}')
assert (within.kind, within.status) == (Kind.OVERLOADED, 503)
assert read_error(ConnectionRefusedError()).kind is Kind.NOT_REACHED
assert not is_permanent(ConnectionRefusedError())
```

An error is read along the errors that it was raised from. The first that has an answer decides; without
an answer, the outermost that says something. An error may name its kind itself, by an attribute `kind`.
An error whose attribute `is_permanent` is True is final.

- A success whose body is an error object, as gateways send it, has the status that stands in it.
- A kind that is final is tried again where the service says when (`Retry-After`); but not an account
  without credit.
- Of a header that came several times, the longest pause counts; what cannot be read counts as nothing
  said.
- The transports send a request once more at once, on a fresh connection, where nothing of it was read: a
  kept connection was closed or reset within a second of the request, or a fresh one was reset. That is no
  attempt of the row. After a longer wait the service may have worked for it, so it is a broken answer,
  and `retry` decides.
- Where a fresh connection is reset or closed for a body of 64 kB or more, the body is too large.
- The form that a request asks for, of structured output or of vectors, may be what is refused with
  {always}; at a service that has not answered in this form yet, with any status from 400 on but those of
  overload, outage, quota and size, and {never}. The clients then try the next form.

"""

HEADINGS = {
    "own": "error of the clients' transports",
    "status": "status",
    "code": "code of an error object, of AWS or gRPC",
    "error": "error, by the name of its class",
    "finish": "`finish_reason` of a model's reply",
    "exhausted": "error or number of the operating system",
    "errno": "number of the operating system",
    "resolver": "answer of the name server",
}


def page() -> str:
    """The page."""
    always, never = (", ".join(map(str, sorted(statuses))) for statuses in (FORM_STATUSES, NO_FORM_STATUSES))
    introduction = INTRODUCTION.replace("{always}", always).replace("{never}", never)
    return introduction + _kinds() + "".join(_section(kind) for kind in Kind if _rules(kind))


def _kinds() -> str:
    lines = [
        "| kind | is | final | may be one row's | all calls wait | of all rows |",
        "|---|---|---|---|---|---|",
    ]
    for kind in Kind:
        traits = TRAITS[kind]
        waits = "yes" if traits.is_overload else "if several rows end so" if traits.is_unreached else ""
        marks = ("yes" if each else "" for each in (traits.is_final, traits.may_have_poison_row))
        final, poison = marks
        of_all = "yes" if traits.of_all_rows else ""
        lines.append(f"| `{kind.name}` | {traits.meaning} | {final} | {poison} | {waits} | {of_all} |")
    return "\n".join([*lines, ""])


def _rules(kind: Kind) -> list[Rule]:
    found = [
        Rule("own", kind, (name,), (error.__doc__ or "").partition("\n")[0])
        for name, error in sorted(vars(transport).items())
        if isinstance(error, type) and issubclass(error, OSError) and getattr(error, "kind", None) is kind
    ]
    bases = (transport.TransportError.__name__, transport.HttpTimeout.__name__)
    return [rule for rule in found if rule.names[0] not in bases] + [
        rule for rule in TABLE if rule.kind is kind
    ]


def _section(kind: Kind) -> str:
    lines = [f"\n## `{kind.name}`: {kind.value}\n", "| by | events | |", "|---|---|---|"]
    for rule in _rules(kind):
        names = ", ".join(f"`{name}`" for name in rule.names)
        beside = f" (beside {', '.join(map(str, rule.only_with))})" if rule.only_with else ""
        lines.append(f"| {HEADINGS[rule.by]} | {names}{beside} | {rule.why} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
