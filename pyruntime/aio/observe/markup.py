"""HTML and SVG in which every text is escaped: names of errors come from users. Functions without state."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """A text that is markup already. Only `tag` and `join` make it."""

    __slots__ = ()


Child = str | Iterable[str] | None


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An element. Children that are no `Markup` are escaped, and so are attributes; None leaves one out.

    A trailing underscore of an attribute's name is dropped (`class_`), others become hyphens.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = join(children)
    if not inside and name in _VOID:
        return Markup(f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{inside}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """The children one after the other; lists of them are flattened."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(escape(_clean(child)))
        else:
            parts.append(str(join(child)))
    return Markup("".join(parts))


_VOID = frozenset({"rect", "line", "path", "circle", "meta", "polyline"})


def _plain(value: object) -> str:
    # Hundredths of a pixel are more than enough.
    return f"{round(value, 2):g}" if isinstance(value, float) else _clean(str(value))


def _clean(text: str) -> str:
    # Characters that no HTML may hold, and half characters that no UTF-8 may hold.
    visible = "".join(c if c >= " " or c in "\t\n" else "\ufffd" for c in text)
    return visible.encode("utf-8", "replace").decode("utf-8")
