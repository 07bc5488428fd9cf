"""A source: makes the enumerator and the readers of one input, for batch, stream and task; and its options.

The idea is Flink's `Source` (FLIP-27, "Refactor Source Interface"). Options are declared once, as the fields
of a dataclass, and from there parsed and checked: a field's type and its `Rule` say what is allowed; an
argument and Spark's option of its name are held to them. What may hold a secret, as an address does, has no
rule: so no error shows it. Any thread.
"""

from __future__ import annotations

import enum
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from inspect import formatannotation, signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pillarbox.dataclass_fields import MISSING
from pillarbox.sources.enumerator import EnumeratorContext, SplitEnumerator
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.split import DataclassSerializer, JsonSerializer, Serializer, Split
from pillarbox.validate import check_bool, check_choice, check_int, check_number, check_text

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=Split)
C = TypeVar("C")


class Boundedness(enum.Enum):
    """The two kinds of sources: with an end, and without."""

    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "continuous unbounded"


class Source(ABC, Generic[S, C]):
    """Input of rows, for Spark and for tasks. A plain value that pickles, for the planner and the tasks.

    `spark.read.format("pillarbox")` and `spark.readStream.format("pillarbox")` read it, by options or by a
    name that `pillarbox.spark.register_source` gives it; without Spark it is the input of a
    `pillarbox.task.StreamTask`.

    It needs a class of splits (`split_type`), an enumerator, a reader; `arrow_schema` for Spark. Its text
    (`repr`) shows no secret. Most sources derive `SimpleSource`, which has all of these.

        >>> from pillarbox.sources import Source
        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> source = GeneratorSource(rows=10)
        >>> isinstance(source, Source), source.boundedness.name
        (True, 'BOUNDED')
        >>> source.arrow_schema().names
        ['id', 'split', 'event_time', 'value']
    """

    split_type: type[S]
    """The class of its splits, a frozen dataclass."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """`BOUNDED` if it has an end. Batch reads of Spark require a bounded source."""

    @abstractmethod
    def create_enumerator(self, context: EnumeratorContext[S]) -> SplitEnumerator[S, C]:
        """Return the enumerator of a new run."""

    @abstractmethod
    def restore_enumerator(self, context: EnumeratorContext[S], checkpoint: C) -> SplitEnumerator[S, C]:
        """Return the enumerator of a run that continues from `checkpoint`, a `snapshot` of an earlier one."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader[S]:
        """Return a reader, in a task: usually a `FetchingReader`."""

    @property
    def split_serializer(self) -> Serializer[S]:
        """The serializer of its splits."""
        return DataclassSerializer(self.split_type)

    @property
    def checkpoint_serializer(self) -> Serializer[C]:
        """The serializer of its enumerator's knowledge; by default for JSON values."""
        return JsonSerializer()

    def arrow_schema(self) -> pa.Schema:
        """Return the columns of its rows. On the driver; may call the service. Raises TypeError here."""
        raise TypeError(f"{type(self).__name__} has no schema, which Spark needs: it must have arrow_schema")

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> Source[Any, Any]:
        """The source that Spark's options describe; `schema` is the one that the user gave, if any.

        The names of options are in lower case, as Spark gives them. Raises ValueError, which names the
        option, for one that is missing, unknown or bad.
        """
        raise TypeError(f"{cls.__name__} cannot be made from options: it must have from_options")


# -- options ----------------------------------------------------------------------------------------

ON_DATA_LOSS = ("fail", "ignore")
FLAGS = {"true": True, "false": False}
PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (lambda text: FLAGS[text.lower()], "true or false"),
    "str": (str, "text"),
}
"""Of each type: what reads an option, and the words for what it may be."""


@dataclass(frozen=True)
class Rule:
    """A restriction of an option besides its type: one of some texts, or a number with a bound, in some unit.

    parse: reads an option whose type is none of `PARSERS`.
    """

    one_of: tuple[str, ...] = ()
    at_least: Any = -math.inf
    above: float = -math.inf
    unit: str = "number"
    parse: Callable[[str], Any] | None = None


def option(default: Any = MISSING, **rule: Any) -> Any:
    """Declare an option as a field of a dataclass: its default, none if it must be given, and its `Rule`."""
    return field(default=default, metadata={"rule": Rule(**rule)})


def check_options(source: Any) -> None:
    """Check the fields of a dataclass. Raises TypeError or ValueError: name, value and what is allowed."""
    for each in fields(source):
        name, value, (kind, or_none) = each.name, getattr(source, each.name), _kind(each)
        rule = each.metadata.get("rule")
        if rule is None or (value is None and or_none):
            continue
        if kind == "int":
            check_int(name, value, rule.at_least)
        elif kind == "float":
            otherwise = " or None" * or_none
            check_number(
                name, value, above=rule.above, minimum=rule.at_least, what=rule.unit, otherwise=otherwise
            )
        elif kind == "bool":
            check_bool(name, value)
        elif rule.one_of:
            check_choice(name, value, rule.one_of)
        elif kind == "str":
            check_text(name, value)


def read_options(kind: type, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that Spark hands over as the arguments of the dataclass `kind`.

    Fields of a type that text does not say, and without a rule that parses it, are not options. Raises
    ValueError for an option that is not a field, missing, or not of its type: it names the option, its value
    and what is allowed.
    """
    declared = {each.name: each for each in fields(kind)}
    left, known, arguments = dict(options), [], {}
    # In the order of the arguments.
    for name in signature(kind).parameters:
        each, option_name = declared[name], name.lower()
        parse, allowed = each.metadata.get("rule", Rule()).parse, "text"
        if parse is None and _kind(each)[0] in PARSERS:
            parse, allowed = PARSERS[_kind(each)[0]]
        if parse is None:
            continue
        known.append(option_name)
        if option_name in left:
            text = left.pop(option_name)
            try:
                arguments[name] = parse(text)
            except (ValueError, KeyError):
                raise ValueError(f"option {option_name!r} is {text!r}: must be {allowed}") from None
        elif each.default is each.default_factory is MISSING:
            raise ValueError(f"option {option_name!r} is missing")
    if left:
        raise ValueError(f"option {min(left)!r} is unknown; there are {', '.join(known)}")
    return arguments


def words(text: str) -> list[str]:
    """Return what stands between the commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _kind(each: Field[Any]) -> tuple[str, bool]:
    """The type of a field, and whether it may be None instead."""
    # A module without `from __future__ import annotations` has types where others have text.
    text = each.type if isinstance(each.type, str) else formatannotation(each.type)
    kind = re.sub(r"(?:typing\.)?Optional\[(\w+)\]| \| None", r"\1", text)
    return kind, kind != text
