"""Errors of a task as the driver shows them: the sentence, then the user's frames. In a worker.

For the thread of a task.
"""

# PySpark sends a traceback as text, and the driver shows it whole: the frames of the worker's thread, which
# are PySpark's and Pillarbox's and the same for every error. So an error leaves as text alone, with the
# frames of the user's code in it. What keeps its traceback is a defect of Pillarbox or of a library below it:
# an error of a class that programs raise by mistake, without a frame of the user's, and one without a text.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from pillarbox.aio.errors import CallFailed, CallTimeout, TooManyFailures, frames_of, marked
from pillarbox.kernel import PillarboxError
from pillarbox.redaction import errors_in_utf8, visible
from pillarbox.spark.compat import send_text_alone
from pillarbox.spark.task_connection import is_in_worker
from pillarbox.user_frames import links, shows_all_frames, user_frames

DEFECTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RecursionError,
    SystemError,
)
"""Classes of errors that code raises by mistake."""
_BEFORE_TRACEBACK = "\n\nThe original traceback:\n"


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Have the driver show the text and the frames of the user's code of an error that is raised within."""
    failure: BaseException
    try:
        yield
        return
    except Exception as error:
        failure = error
        if is_in_worker() and not shows_all_frames():
            failure = _shown(error)
        if failure is error:
            raise
    raise failure


def in_words(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, for Spark to call in a worker, whose errors the driver shows as text in UTF-8.

    The errors of an iterator that it returns too.
    """
    in_utf8 = errors_in_utf8(fn)

    @wraps(fn)
    def call(*arguments: object, **named: object) -> Any:
        with errors_in_words():
            found = in_utf8(*arguments, **named)
        return _iterated(found) if isinstance(found, Iterator) else found

    return call


def _iterated(found: Iterator[Any]) -> Iterator[Any]:
    with errors_in_words():
        yield from found


def _shown(error: Exception) -> BaseException:
    if isinstance(error, CallFailed | CallTimeout | TooManyFailures):
        # Its text has the frames, and a mark.
        send_text_alone()
        return error
    text = " ".join(str(error).partition(_BEFORE_TRACEBACK)[0].split())
    is_defect = isinstance(error, DEFECTS) and not isinstance(error, PillarboxError)
    if (is_defect or not text) and not any(map(user_frames, links(error))):
        return error
    frames = frames_of(error)
    kind = type(error)
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    shown: BaseException = type(kind.__name__, (Exception,), about)(
        visible(marked(f"{text}\n{frames}" if frames else text, error))
    )
    shown.__suppress_context__ = True
    send_text_alone()
    return shown
