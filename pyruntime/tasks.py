"""Tasks of language models over a column of texts: classify, extract, summarize, translate.

Each is a question of `pillarbox.spark.ask` with a prompt and an answer of its own, over a DataFrame of Spark
or a table of `pillarbox.frames`. `classifier` and the others return the `Chat` of a task, for `async_udf` and
SQL. For the driver; a `Chat` is a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, TypeVar

from pillarbox.clients import Chat
from pillarbox.spark.client_columns import ask
from pillarbox.validate import check_positive_int, check_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames

__all__ = [
    "classifier",
    "classify",
    "extract",
    "extractor",
    "summarize",
    "summarizer",
    "translate",
    "translator",
]

Frame = TypeVar("Frame")

MAX_LABELS = 500
"""Labels of a classification, at most: services take enumerations of about so many values."""
IMAGES_ALONE = "The text is in the images."
"""The question of a task where a row has no text beside its images."""
MAX_WORDS = 100
"""Words of a summary, at most, unless the user says others."""


def classify(
    df: Frame,
    text: str | None,
    labels: Sequence[str] | Mapping[str, str],
    *,
    client: Chat,
    into: str = "label",
    keep: str | Sequence[str] = "*",
    **options: Unpack[OptionNames],
) -> Frame:
    """Add a column with the label of each text; null for a null text.

    df: as for `ask`. text: the column of texts; None for the images of the client alone.
    labels: two or more, or what each of them means, by label.
    client: a `Chat`, whose service, model, limits and images count; its prompt, system and answer are those
    of the task. keep, options: as for `ask`.

        >>> import pyarrow
        >>> from pillarbox.clients import Chat
        >>> from pillarbox.tasks import classify
        >>> from pillarbox.testing import serve
        >>> reviews = pyarrow.table({"text": ["a lovely soup", None]})
        >>> with serve() as service:
        ...     model = Chat(service.url, "any-model", prompt="{text}")
        ...     made = classify(reviews, "text", ["good", "bad"], client=model)
        >>> good, none = made["label"].to_pylist()
        >>> good in ("good", "bad"), none
        (True, None)

    Raises TypeError and ValueError at once for a bad argument.
    """
    chat = classifier(client, labels, column=text, into=into)
    return ask(df, client=chat, keep=keep, **options)


def extract(
    df: Frame,
    text: str | None,
    answer: object,
    *,
    client: Chat,
    into: str | None = None,
    keep: str | Sequence[str] = "*",
    **options: Unpack[OptionNames],
) -> Frame:
    """Add columns with the values that each text has for the fields of a type.

    answer: a Pydantic model, a dataclass or a JSON schema of an object, as `Chat` takes it. into: the name of
    one column, a struct; None for a column of each field. The rest is as for `classify`.

        >>> import pandas
        >>> from dataclasses import dataclass
        >>> from pillarbox.clients import Chat
        >>> from pillarbox.tasks import extract
        >>> from pillarbox.testing import serve
        >>> @dataclass
        ... class Invoice:
        ...     number: str
        ...     total: float
        >>> letters = pandas.DataFrame({"text": ["Invoice 17 of 30 euros"]})
        >>> with serve() as service:
        ...     model = Chat(service.url, "any-model", prompt="{text}")
        ...     made = extract(letters, "text", Invoice, client=model)
        >>> [*made]
        ['text', 'number', 'total']
    """
    return ask(df, client=extractor(client, answer, column=text), into=into, keep=keep, **options)


def summarize(
    df: Frame,
    text: str | None,
    *,
    client: Chat,
    max_words: int = MAX_WORDS,
    into: str = "summary",
    keep: str | Sequence[str] = "*",
    **options: Unpack[OptionNames],
) -> Frame:
    """Add a column with a summary of each text, in the text's language.

    max_words: that the model is asked to keep to. The rest is as for `classify`.

        >>> import pandas
        >>> from pillarbox.clients import Chat
        >>> from pillarbox.tasks import summarize
        >>> from pillarbox.testing import serve
        >>> letters = pandas.DataFrame({"text": ["A long letter."]})
        >>> with serve() as service:
        ...     model = Chat(service.url, "any-model", prompt="{text}")
        ...     made = summarize(letters, "text", client=model, max_words=20)
        >>> [*made]
        ['text', 'summary']
    """
    chat = summarizer(client, max_words, column=text)
    return ask(df, client=chat, into=into, keep=keep, **options)


def translate(
    df: Frame,
    text: str | None,
    language: str,
    *,
    client: Chat,
    into: str = "translation",
    keep: str | Sequence[str] = "*",
    **options: Unpack[OptionNames],
) -> Frame:
    """Add a column with a translation of each text.

    language: its name, such as "French". The rest is as for `classify`.

        >>> import pandas
        >>> from pillarbox.clients import Chat
        >>> from pillarbox.tasks import translate
        >>> from pillarbox.testing import serve
        >>> letters = pandas.DataFrame({"text": ["A letter."]})
        >>> with serve() as service:
        ...     model = Chat(service.url, "any-model", prompt="{text}")
        ...     made = translate(letters, "text", "French", client=model)
        >>> [*made]
        ['text', 'translation']
    """
    return ask(df, client=translator(client, language, column=text), into=into, keep=keep, **options)


# -- the chats of the tasks ------------------------------------------------------------------------


def classifier(
    client: Chat,
    labels: Sequence[str] | Mapping[str, str],
    *,
    column: str | None = "text",
    into: str = "label",
) -> Chat:
    """Return the `Chat` that gives the label of a text, as an object with the field `into`.

        >>> from pillarbox.clients import Chat
        >>> from pillarbox.spark import async_udf
        >>> from pillarbox.tasks import classifier
        >>> from pillarbox.testing import serve
        >>> with serve() as service:
        ...     chat = classifier(Chat(service.url, "any-model", prompt="{text}"), ["good", "bad"])
        ...     _ = spark.udf.register("review", async_udf(chat))
        ...     label = spark.sql("select review('a lovely soup').label as label").first().label
        >>> label in ("good", "bad")
        True

    Arguments and errors: those of `classify`.
    """
    if isinstance(labels, Set) or not isinstance(labels, Iterable):
        # The order of a set is another one in each process, and the prompt, which a cache compares, with it.
        raise TypeError(f"labels={labels!r:.200}: must be a list of labels, or a dict of their meanings")
    names = [*labels]
    if isinstance(labels, str) or len(names) < 2 or len({*names}) < len(names) or len(names) > MAX_LABELS:
        raise ValueError(f"labels={labels!r:.200}: must be 2 to {MAX_LABELS} different labels")
    for name in names:
        check_text("labels", name)
    check_text("into", into)
    meanings = labels if isinstance(labels, Mapping) else {}
    listed = "\n".join(f"- {name}: {meanings[name]}" if name in meanings else f"- {name}" for name in names)
    schema = {
        "type": "object",
        "properties": {into: {"type": "string", "enum": names}},
        "required": [into],
        "additionalProperties": False,
    }
    system = f"You give a text the one label that fits it best. The labels are:\n{listed}"
    return _asked(client, column, system, schema)


def extractor(client: Chat, answer: object, *, column: str | None = "text") -> Chat:
    """Return the `Chat` that gives the values that a text has for the fields of a type.

        >>> from pillarbox.clients import Chat
        >>> from pillarbox.tasks import extractor
        >>> schema = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
        >>> extractor(Chat.vllm("any-model", prompt="{text}"), schema, column="letter").fields
        ('letter',)

    Arguments and errors: those of `extract`.
    """
    if answer is None:
        raise ValueError("answer=None: must be a Pydantic model, a dataclass or a JSON schema of an object")
    system = "You find in a text the values of the fields that you are asked for. Make nothing up."
    return _asked(client, column, system, answer)


def summarizer(client: Chat, max_words: int = MAX_WORDS, *, column: str | None = "text") -> Chat:
    """Return the `Chat` that gives a summary of a text.

        >>> from pillarbox.clients import Chat
        >>> from pillarbox.tasks import summarizer
        >>> summarizer(Chat.vllm("any-model", prompt="{text}"), 20, column="letter").fields
        ('letter',)

    Arguments and errors: those of `summarize`.
    """
    check_positive_int("max_words", max_words)
    system = (
        f"You summarize a text in at most {max_words} words, in the text's own language. "
        "You answer with the summary alone."
    )
    return _asked(client, column, system, None)


def translator(client: Chat, language: str, *, column: str | None = "text") -> Chat:
    """Return the `Chat` that gives a translation of a text.

        >>> from pillarbox.clients import Chat
        >>> from pillarbox.tasks import translator
        >>> translator(Chat.vllm("any-model", prompt="{text}"), "French", column="letter").fields
        ('letter',)

    Arguments and errors: those of `translate`.
    """
    check_text("language", language)
    return _asked(
        client, column, f"You translate a text into {language}. You answer with the translation alone.", None
    )


def _asked(client: Chat, column: str | None, system: str, answer: object) -> Chat:
    if not isinstance(client, Chat):
        raise TypeError(f"client={client!r:.200}: must be a pillarbox.clients.Chat")
    if column is not None:
        check_text("column", column)
    elif not client.image_fields:
        raise ValueError("text=None: is for a client with images=...; give the column of the texts")
    # A text is data, whatever it says: it stands apart from the instructions.
    prompt = IMAGES_ALONE if column is None else f"{{{column}}}"
    return dataclasses.replace(client, prompt=prompt, system=system, answer=answer)
