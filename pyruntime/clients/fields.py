"""Fields of a row, by their names, and the texts that a client sends for them. Pure; any thread.

All clients take the same values: those of Python, and the scalars of NumPy, pandas and Arrow for the values
of Python that they are. None, NaN, NaT, pandas' NA and NumPy's masked are one thing, a value that is missing.
"""

# Half a character, a lone surrogate, is what is left where somebody has cut a text in the middle of one, by
# UTF-16. UTF-8 has none, so it cannot be sent as it is, and what encoders do instead differs: an error for
# the whole request, a question mark, an escape that some services refuse. Both halves beside each other are a
# character, and are joined.

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from string import Formatter
from typing import Any
from uuid import UUID

from pillarbox.validate import check_text

SCALARS = (str, int, float, Decimal, date, time, UUID)
"""Types of a row that is a value, not a record."""


def values_by_name(row: tuple[Any, ...], names: Sequence[str]) -> dict[str, Any]:
    """The fields `names` of a row: of a mapping, of an object's attributes, or of the values in their order.

    row: the arguments of a call. Raises ValueError for a row that lacks a field.
    """
    if not names:
        return {}
    if len(row) == 1:
        record = row[0]
        if _has_items(record):
            found = {}
            for name in names:
                value = _item(record, name, names)
                found[name] = value if type(value) in _PLAIN else plain_value(value)
            return found
        record = plain_value(record)
        # A tuple without names is the values, as several arguments are; `count` is not a name of it.
        if isinstance(record, tuple | list) and not (
            hasattr(record, "_fields") or (hasattr(record, names[0]) and not hasattr(list, names[0]))
        ):
            row = tuple(record)
        elif record is not None and not isinstance(record, SCALARS):
            return {name: plain_value(_attribute(record, name, names)) for name in names}
    if len(row) != len(names):
        raise ValueError(f"{len(row)} values where {len(names)} are needed: {', '.join(names)}")
    return dict(zip(names, map(plain_value, row), strict=True))


def _has_items(record: object) -> bool:
    """True for mappings and for rows: an attribute of these may be their own, as `count` of a tuple is."""
    if type(record) is dict:
        return True
    if isinstance(record, Mapping) or _library(type(record)) == "pandas":
        return isinstance(record, Mapping) or hasattr(record, "keys")
    if getattr(getattr(record, "dtype", None), "names", None):
        # A record of NumPy.
        return True
    has_names = not isinstance(record, tuple) or hasattr(record, "__fields__") or hasattr(record, "_fields")
    return has_names and callable(getattr(type(record), "asDict", None))


def _item(record: Any, name: str, names: Sequence[str]) -> Any:
    try:
        return record[name]
    except (KeyError, ValueError):
        raise ValueError(f"the row has no {name!r}; needed are: {', '.join(names)}") from None


def _attribute(record: object, name: str, names: Sequence[str]) -> Any:
    try:
        return getattr(record, name)
    except AttributeError:
        raise ValueError(f"the row has no {name!r}; needed are: {', '.join(names)}") from None


_UNCHANGED = frozenset({str, int, bool, type(None)})
_PLAIN = _UNCHANGED | {dict, list, tuple, bytes, datetime, date}


def plain_value(value: object) -> Any:
    """The value of Python that a scalar of NumPy, pandas or Arrow is; None for one that is missing.

    All others are given as they are.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, float) and value != value:
        return None
    if kind is float:
        return value
    library = _library(kind)
    if library == "numpy":
        return _of_numpy(value)
    if library == "pandas":
        return None if kind.__name__ in ("NAType", "NaTType") else value
    if library == "pyarrow" and hasattr(value, "as_py"):
        return plain_value(value.as_py())
    return None if isinstance(value, Decimal) and value.is_nan() else value


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _of_numpy(value: Any) -> Any:
    if type(value).__name__ == "MaskedConstant":
        return None
    if getattr(value, "shape", None) != () or value.dtype.names:
        return value
    kind = value.dtype.kind
    if kind == "f":
        # As it is written: 0.1 of 32 bits is 0.1, and not the nearest double.
        return None if value != value else float(str(value))
    if kind == "M":
        return _moment_of_numpy(value)
    return value.item() if kind in "biuUO" else value


def _moment_of_numpy(value: Any) -> Any:
    text = str(value)
    if text == "NaT":
        return None
    finest = value if str(value.dtype) == "datetime64[D]" else value.astype("datetime64[us]")
    found = finest.item()
    # Nanoseconds, and years that Python does not know, are known as text only.
    return found if finest == value and isinstance(found, date) else text


_HALF_ESCAPES = re.compile(
    r"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def without_half_escapes(text: str) -> str:
    """The text of JSON with the escape of U+FFFD in place of each escape of half a character."""
    if "\\u" not in text:
        return text
    return _HALF_ESCAPES.sub(lambda found: "\\ufffd" if found[1] else found[0], text)


class HalfCharacter(ValueError):
    """Raised for a text with half a character (a lone surrogate), which cannot be sent. Never tried again."""

    is_permanent = True


def whole_text(name: str, text: str, surrogates: str = "error") -> str:
    """`text` as UTF-8 has it: halves of a character that stand beside each other are joined.

    surrogates: "replace" puts U+FFFD for a half without the other one. Raises HalfCharacter for "error".
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = error.start
    else:
        return text
    units = text.encode("utf-16-le", "surrogatepass")
    try:
        return units.decode("utf-16-le", "replace" if surrogates == "replace" else "strict")
    except UnicodeDecodeError:
        pass
    raise HalfCharacter(
        f"{name}: has half a character (a lone surrogate) at place {place} of {len(text):,}, which UTF-8 has "
        "not; Http(surrogates='replace') puts U+FFFD for it"
    )


def may_have_halves(content: bytes) -> bool:
    """Return True if the texts in bytes of JSON may have half characters: as escapes, or as they are."""
    return b"\\u" in content or b"\xed" in content


def whole_json(name: str, value: object, surrogates: str = "error") -> Any:
    """The value of JSON with the texts in it as `whole_text` gives them. Raises HalfCharacter."""
    if isinstance(value, str):
        return whole_text(name, value, surrogates)
    if isinstance(value, list):
        return [whole_json(name, each, surrogates) for each in value]
    if isinstance(value, dict):
        return {
            whole_text(name, key, surrogates): whole_json(name, each, surrogates)
            for key, each in value.items()
        }
    return value


def text_of(name: str, value: object) -> str:
    """The text of a scalar, in an address or a prompt. Raises TypeError that names the field for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, SCALARS):
        return str(value)
    raise TypeError(f"{name}: a {type(value).__name__} has no form in an address; make it a str")


def json_of(value: Any, **options: Any) -> str:
    """The JSON of a value, records as objects. Raises TypeError and ValueError for what has no form in it."""
    return json.dumps(_plain(value), default=_form, ensure_ascii=False, **options)


def _plain(value: Any) -> Any:
    """The value with dicts for records, which JSON would take for the tuples that they are."""
    kind = type(value)
    if kind in _UNCHANGED:
        return value
    if kind is not list and kind is not dict:
        value = plain_value(value)
        if hasattr(value, "tolist") and _library(type(value)) == "numpy":
            value = value.tolist()
        if callable(getattr(type(value), "asDict", None)):
            value = value.asDict()
    if isinstance(value, Mapping):
        return {plain_value(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _form(value: object) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


class Prompt:
    """A text with names of fields in braces. Raises TypeError and ValueError that name the argument `prompt`.

    `names` are the fields, each once, in the order in which they first stand.
    """

    def __init__(self, text: Any) -> None:
        check_text("prompt", text)
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"prompt={text!r}: {error}; a brace itself is written as {{{{ or }}}}") from None
        for _, name, form, conversion in pieces:
            # Attributes and items of values are nobody's business but the row's.
            if name is not None and (not name.isidentifier() or form or conversion):
                raise ValueError(
                    f"prompt={text!r}: {{{name}}} must be the name of a column, and nothing else; a brace "
                    "itself is written as {{ or }}"
                )
        self.names = tuple(dict.fromkeys(name for _, name, _, _ in pieces if name is not None))
        self._text: str = text

    def filled(self, values: Mapping[str, Any]) -> str:
        """The text of a row: strings and numbers as they are, lists and records as JSON. Raises TypeError."""
        texts = {}
        for name in self.names:
            value = values[name]
            # The text itself: a class of texts, such as an enumeration, may have a form of its own.
            texts[name] = value if type(value) is str else str.__str__(_prompted(name, value))
        return self._text.format_map(texts)


def _prompted(name: str, value: object) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, SCALARS):
        return text_of(name, value)
    try:
        return json_of(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}; make it a str") from None
