"""Texts of rows: those that are sent to a service, and the errors of those that are not.

Pure; any thread.
"""

from __future__ import annotations

from typing import Any

from pillarbox.clients.fields import HalfCharacter, plain_value, whole_text


class TextTooLong(ValueError):
    """Raised for a text with more tokens than `max_text_tokens`, with `long_texts="error"`."""

    is_permanent = True


class EmptyText(ValueError):
    """Raised for a text without a character but spaces: it has no vector, and is not sent."""

    is_permanent = True


def empty_text(name: str) -> EmptyText:
    """The error for the text called `name`."""
    return EmptyText(f"{name}: is empty, so that it has no vector, and was not sent; leave it out")


def texts_of(texts: Any, surrogates: str) -> tuple[list[str | None], dict[int, Exception]]:
    """The texts of a list, of an Arrow array, or of a record batch with one column; None for a missing one.

    And the errors of what is not a text, is empty, or has half a character, by its place. Raises TypeError.
    """
    if getattr(texts, "num_columns", 1) != 1:
        raise TypeError(
            f"texts: a batch with {texts.num_columns} columns ({', '.join(texts.schema.names)}); give one"
        )
    if hasattr(texts, "num_columns"):
        texts = texts.column(0)
    rows = texts.to_pylist() if hasattr(texts, "to_pylist") else texts
    if not isinstance(rows, list | tuple):
        raise TypeError(
            f"texts: must be a list of texts or an Arrow column of them, not {type(rows).__name__}"
        )
    if {*map(type, rows)} == {str} and "".join(rows).isascii() and all(map(str.strip, rows)):
        # Most texts are, and have nothing that is looked for below: no line of Python runs for each.
        return [*rows], {}
    found: list[str | None] = []
    errors: dict[int, Exception] = {}
    for place, given in enumerate(rows):
        if type(given) is str and given.isascii() and given and not given.isspace():
            # Most texts are, and have nothing that is looked for below.
            found.append(given)
            continue
        text = plain_value(given)
        if isinstance(text, str):
            try:
                whole = whole_text(f"texts[{place}]", str.__str__(text), surrogates)
                if whole.strip():
                    found.append(whole)
                    continue
                errors[place] = empty_text(f"texts[{place}]")
            except HalfCharacter as error:
                errors[place] = error
        elif text is not None:
            errors[place] = TypeError(f"texts[{place}]: must be a str or None, not {type(given).__name__}")
        found.append(None)
    return found, errors
