"""Vectors and answers of the stand-in model: made of the text alone, the same on every machine.

Pure; any thread.
"""

# No model is small enough to come with a package, so values are made by rules. They must be good enough to
# look at: texts that share words have near vectors, and an answer takes what it can from the question. Only
# the standard library: a page's first example is run before anything else is installed.

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"\w+")


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


STOP_WORDS = _words(
    """
    a an and are as at be by do for from had has have he her his i in is it its me my not of on or our
    she so that the their them they this to us was we were what when which who will with you your
    """
)
"""Words that say little about a text: they count for a tenth in its vector, and are not keywords."""
STOP_WEIGHT = 0.1
PIECE_WEIGHT = 0.5
"""Weight of a piece of a word beside that of the word: pieces make "love" and "loving" near."""
PIECE = 3
"""Characters of a piece."""
GOOD_WORDS = _words(
    """
    amazing awesome beautiful best better clean delicious delightful easy enjoyed excellent fast fine
    friendly fresh fun glad good great happy helpful kind like liked love loved lovely nice perfect
    pleasant pleased positive quick recommend right superb sweet thank thanks true warm well wonderful
    yes
    """
)
BAD_WORDS = _words(
    """
    angry awful bad bland boring broken burnt cold crash crashed damaged dirty disappointed
    disappointing expensive fail failed false hate hated horrible late loud negative never nobody noisy
    not poor raw rude sad salty sick slow stale terrible ugly unfriendly unhappy waited waste worse
    worst wrong no
    """
)
MAX_KEYWORDS = 3
MAX_TEXT = 120
"""Characters of a text that an answer takes from the question, where no schema says how many."""
SOME_DATE = "2026-01-01"
FORMATS = {
    "date": (r"\b\d{4}-\d\d-\d\d\b", SOME_DATE),
    "date-time": (
        r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)",
        f"{SOME_DATE}T00:00:00Z",
    ),
    "time": (r"\b\d\d:\d\d:\d\d\b", "00:00:00"),
    "duration": (r"\bP(?:\d+[YMWD])*(?:T(?:\d+[HMS])+)?\b", "P1D"),
    "email": (r"[\w.+-]+@[\w-]+\.[\w.-]*\w", "someone@example.com"),
    "uri": (r"https?://[^\s<>\"']+", "https://example.com/"),
    "uuid": (
        r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
        "00000000-0000-4000-8000-000000000000",
    ),
    "ipv4": (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "192.0.2.1"),
}
"""Formats of JSON Schema: how a text of the format looks in a question, and one for questions without."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_NUMBER = re.compile(r"(?<![\w.:-])-?\d+(?:,\d{3})*(?:\.\d+)?(?!\w|-\d|:\d)")
_VALUE = r"([^,;\n]+?)(?=[,;\n]|[.!?](?:\s|$)|$)"
_CLAUSE = re.compile(r"[;\n]+|(?<=[.!?])\s+")
_ALTERNATIVES = re.compile(r"\b(\w+(?:, \w+)*),? or (\w+)\b")


class SchemaRefused(ValueError):
    """Raised for a JSON schema that the stand-in cannot satisfy; its text says which part."""


def count_tokens(text: str) -> int:
    """Return the number of tokens of a text: words and signs."""
    return len(_TOKEN.findall(text))


def embed(text: str, dimensions: int) -> list[float]:
    """Return a vector of length 1: near for texts that share words or pieces of words."""
    vector = [0.0] * dimensions
    for feature, weight in _features(text):
        place = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
        vector[place % dimensions] += weight if place & 0x8000_0000 else -weight
    length = math.sqrt(sum(each * each for each in vector))
    if not length:
        # A text without words, or whose features cancel out: still a vector that can be compared.
        vector[zlib.crc32(text.encode("utf-8", "surrogatepass")) % dimensions] = length = 1.0
    return [each / length for each in vector]


def _features(text: str) -> Iterator[tuple[str, float]]:
    for word in _WORD.findall(text.casefold()):
        weight = STOP_WEIGHT if word in STOP_WORDS else 1.0
        yield word, weight
        framed = f"<{word}>"
        for at in range(len(framed) - PIECE + 1):
            yield f"{framed[at : at + PIECE]}…", PIECE_WEIGHT * weight


def reply(messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None, as_json: bool) -> str:
    """Return the text of a reply: JSON that satisfies `schema`, or a sentence.

    messages: of the request. as_json: JSON is asked for, and where no schema is given the messages may hold
    it. Raises SchemaRefused.
    """
    texts = [_text_of(each) for each in messages]
    question = next(
        (text for each, text in zip(messages, texts, strict=True) if each.get("role") == "user"), ""
    )
    found, question = _schema_in(question)
    if schema is None:
        schema = next((each for each, _ in map(_schema_in, texts) if each is not None), found)
    # As most prompts are written: what to do, a colon, and the text.
    instruction, colon, text = question.partition(":")
    subject = _Subject(text, instruction) if colon and text.strip() else _Subject(question)
    if schema is not None:
        return json.dumps(_Maker(schema, subject).make(schema), ensure_ascii=False)
    return json.dumps({"answer": subject.sentence()}, ensure_ascii=False) if as_json else subject.sentence()


def _text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whose content is a text or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _schema_in(text: str) -> tuple[Mapping[str, Any] | None, str]:
    """The JSON schema of an object that a message quotes, or None; and the message without its paragraph."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            found, _ = decoder.raw_decode(text, at)
        except ValueError:
            found = None
        if isinstance(found, dict) and isinstance(found.get("properties"), dict):
            return found, text[: max(0, text.rfind("\n\n", 0, at))]
        at = text.find("{", at + 1)
    return None, text


class _Subject:
    """The subject of a question, read by rules.

    text: what is asked about. instruction: what is asked for.
    """

    def __init__(self, text: str, instruction: str = "") -> None:
        self.instruction = instruction
        self.text = text.strip()
        self.words = _WORD.findall(self.text)
        self.lower = [word.casefold() for word in self.words]
        good = sum(word in GOOD_WORDS for word in self.lower)
        bad = sum(word in BAD_WORDS for word in self.lower)
        self.polarity = (good - bad) / (good + bad) if good + bad else 0.0
        """From -1.0, bad words alone, to 1.0, good words alone."""

    def numbers(self) -> list[float]:
        return [float(each.replace(",", "")) for each in _NUMBER.findall(self.text)]

    def keywords(self) -> list[str]:
        found = dict.fromkeys(word for word in self.lower if word not in STOP_WORDS and not word.isdigit())
        longest = sorted(found, key=len, reverse=True)[:MAX_KEYWORDS]
        return [word for word in found if word in longest] or self.lower[:1] or ["nothing"]

    def sentence(self) -> str:
        """A reply in words: one of the alternatives of the instruction, or the first clause."""
        given = _ALTERNATIVES.search(self.instruction)
        if given is not None:
            return str(self.choose([*given[1].casefold().split(", "), given[2].casefold()]))
        return (_CLAUSE.split(self.text)[0] if self.text else "")[:MAX_TEXT].strip() or "nothing"

    def choose(self, values: Sequence[Any]) -> Any:
        """One of several values: named in the text, or of its polarity, or with the nearest vector."""
        said = f" {' '.join(self.lower)} "
        for value in values:
            if f" {' '.join(_WORD.findall(str(value).casefold()))} " in said:
                return value
        signs = {str(value).casefold(): value for value in values}
        good = [value for word, value in signs.items() if word in GOOD_WORDS]
        bad = [value for word, value in signs.items() if word in BAD_WORDS]
        if good and bad:
            rest = [value for value in signs.values() if value not in good and value not in bad]
            return rest[0] if rest and not self.polarity else (bad if self.polarity < 0 else good)[0]
        mine = embed(self.text, 256)
        near = [sum(a * b for a, b in zip(mine, embed(str(value), 256), strict=True)) for value in values]
        return values[near.index(max(near))]

    def named(self, name: str) -> str | None:
        """The text under a name: `name: ...` or `name is ...`, up to the end of the clause."""
        words = r"[\s_-]*".join(map(re.escape, re.split(r"[\s_-]+", name)))
        found = re.search(rf"\b{words}\b\s*(?:[:=]|\bis\b)\s*{_VALUE}", self.text, re.IGNORECASE)
        return found[1].strip() if found else None


class _Maker:
    """Makes a value of a JSON schema from a question. root: the schema in which references are looked up."""

    def __init__(self, root: Mapping[str, Any], subject: _Subject) -> None:
        self._root = root
        self._subject = subject

    def make(self, schema: object, name: str = "", depth: int = 0) -> Any:
        """Return a value of `schema`, which stands under `name`. Raises SchemaRefused."""
        if depth > 20:
            raise SchemaRefused(f"{name or 'the schema'}: an answer must have an end")
        if not isinstance(schema, Mapping):
            return self._text({}, name)
        if "$ref" in schema:
            return self.make(
                {**self._referred(str(schema["$ref"])), **_without(schema, "$ref")}, name, depth + 1
            )
        if "allOf" in schema:
            merged: dict[str, Any] = dict(_without(schema, "allOf"))
            for part in schema["allOf"]:
                part = self._referred(str(part["$ref"])) if "$ref" in part else part
                both = {**merged.get("properties", {}), **part.get("properties", {})}
                required = [*merged.get("required", ()), *part.get("required", ())]
                merged |= {**part, **({"properties": both, "required": required} if both else {})}
            return self.make(merged, name, depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._subject.choose(schema["enum"])
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if not alternatives and isinstance(schema.get("type"), list):
            alternatives = [{**schema, "type": each} for each in schema["type"]]
        if alternatives:
            return self._alternative(alternatives, name, depth)
        kind = schema.get("type") or ("object" if "properties" in schema else "string")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return self._number(schema, kind == "integer")
        if kind == "boolean":
            return self._subject.polarity >= 0
        return None if kind == "null" else self._text(schema, name)

    def _referred(self, reference: str) -> Mapping[str, Any]:
        found: Any = self._root
        for part in reference.lstrip("#/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise SchemaRefused(f"the reference {reference!r} names nothing in the schema")
        return found

    def _alternative(self, alternatives: Sequence[Any], name: str, depth: int) -> Any:
        """The first alternative; null, where it is one, for what the text has nothing of."""
        first = next(each for each in alternatives if each.get("type") != "null" or len(alternatives) == 1)
        if any(each.get("type") == "null" for each in alternatives) and not self._is_said(first, name):
            return None
        return self.make(first, name, depth + 1)

    def _is_said(self, schema: Mapping[str, Any], name: str) -> bool:
        kind = schema.get("type")
        if kind in ("integer", "number"):
            return self._said_number(schema, kind == "integer") is not None
        if kind == "string" and "enum" not in schema:
            known = FORMATS.get(schema.get("format", ""))
            if known is not None:
                return re.search(known[0], self._subject.text) is not None
            return self._subject.named(name) is not None
        return bool(self._subject.text)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        found = {name: self.make(each, name, depth + 1) for name, each in properties.items()}
        for name in schema.get("required", ()):
            found.setdefault(name, self._text({}, name))
        rest = schema.get("additionalProperties")
        if not properties and rest is not None and rest is not False:
            found = {word: self.make(rest, word, depth + 1) for word in self._subject.keywords()}
        return found

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if "prefixItems" in schema:
            return [self.make(each, name, depth + 1) for each in schema["prefixItems"]]
        item = schema.get("items", {})
        if isinstance(item, Mapping) and "$ref" in item:
            item = {**self._referred(str(item["$ref"])), **_without(item, "$ref")}
        kind = item.get("type") if isinstance(item, Mapping) else None
        if isinstance(item, Mapping) and item.get("enum"):
            said = [each for each in item["enum"] if str(each).casefold() in self._subject.lower]
            found = said or [self._subject.choose(item["enum"])]
        elif kind in ("integer", "number"):
            made = {"minimum": -math.inf, **item}
            found = [each for each in self._subject.numbers() if _fits(each, made, kind == "integer")]
            found = [int(each) for each in found] if kind == "integer" else list(found)
        elif kind == "string" and not item.keys() & {"format", "pattern", "minLength", "maxLength"}:
            found = list(self._subject.keywords())
        else:
            clauses = [each for each in map(str.strip, _CLAUSE.split(self._subject.text)) if each] or [""]
            found = [_Maker(self._root, _Subject(clause)).make(item, name, depth + 1) for clause in clauses]
        for at in range(len(found), least):
            found.append(found[at % len(found)] if found else self.make(item, name, depth + 1))
        if schema.get("uniqueItems"):
            found = list({json.dumps(each, sort_keys=True): each for each in found}.values())
            if len(found) < least:
                raise SchemaRefused(f"{name}: the text has no {least} different items")
        return found[: int(most)] if most < len(found) else found

    def _said_number(self, schema: Mapping[str, Any], whole: bool) -> float | None:
        return next((each for each in self._subject.numbers() if _fits(each, schema, whole)), None)

    def _number(self, schema: Mapping[str, Any], whole: bool) -> float:
        """A number of the text; else of a range the place that its polarity has; else its number of words."""
        found = self._said_number(schema, whole)
        if found is None:
            step = float(schema.get("multipleOf") or (1 if whole else 0))
            low = _bound(schema, "minimum", "exclusiveMinimum", step or 1e-6)
            high = _bound(schema, "maximum", "exclusiveMaximum", -step or -1e-6)
            if low is not None and high is not None:
                found = low + (high - low) * (self._subject.polarity + 1) / 2
            else:
                found = float(len(self._subject.words))
                found = found if low is None else max(found, low)
                found = found if high is None else min(found, high)
            if step:
                found = math.floor(found / step + 1e-9) * step
                found += step if low is not None and found < low else 0
            if not _fits(found, schema, whole):
                raise SchemaRefused(f"no number is {json.dumps(schema, default=str)}")
        return int(found) if whole else found

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        known = FORMATS.get(schema.get("format", ""))
        pattern = schema.get("pattern")
        if known is not None:
            match = re.search(known[0], self._subject.text)
            found = match[0] if match else known[1]
        elif pattern is not None:
            found = self._matching(pattern, name)
        else:
            found = self._subject.named(name) or self._subject.sentence()
            least, most = schema.get("minLength", 0), schema.get("maxLength", MAX_TEXT)
            found = found[:most].ljust(least, ".") if most else ""
        return found

    def _matching(self, pattern: str, name: str) -> str:
        try:
            known = re.compile(pattern)
        except re.error as error:
            raise SchemaRefused(
                f"{name}: the pattern {pattern!r} is not a regular expression: {error}"
            ) from None
        for text in (*self._subject.words, *self._subject.text.split(), self._subject.text):
            match = known.search(text)
            if match is not None and known.search(match[0]):
                return match[0]
        raise SchemaRefused(
            f"{name}: the stand-in takes a text for the pattern {pattern!r} from the question, which has none"
        )


def _without(schema: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != word}


def _bound(schema: Mapping[str, Any], name: str, exclusive: str, step: float) -> float | None:
    bound, beyond = schema.get(name), schema.get(exclusive)
    if beyond is not None:
        return float(beyond) + step
    return None if bound is None else float(bound)


def _fits(number: float, schema: Mapping[str, Any], whole: bool) -> bool:
    step = schema.get("multipleOf")
    return (
        schema.get("minimum", -math.inf) <= number <= schema.get("maximum", math.inf)
        and schema.get("exclusiveMinimum", -math.inf) < number < schema.get("exclusiveMaximum", math.inf)
        and not (whole and number != math.floor(number))
        and not (step and abs(number / step - round(number / step)) > 1e-9)
    )
