"""Errors of a task as the driver shows them: the sentence, then the user's frames. In a worker.

For the thread of a task.
"""

# PySpark sends a traceback as text, and the driver shows it whole: the frames of the worker's thread, which
# are PySpark's and Pillarbox's and the same for every error. So an error that has its own words leaves as
# text alone, with the frames of the user's code in it. Any other one is a defect, and keeps its traceback.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pillarbox.aio.errors import CallFailed, CallTimeout, TooManyFailures, frames_of, marked
from pillarbox.kernel import PillarboxError
from pillarbox.redaction import visible
from pillarbox.spark.compat import send_text_alone
from pillarbox.spark.task_connection import is_in_worker
from pillarbox.user_frames import links, shows_all_frames, user_frames

IN_WORDS = (PillarboxError, TypeError, ValueError, RuntimeError, ImportError, MemoryError)
"""Classes of errors that Pillarbox raises with a text for the user."""
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


def _shown(error: Exception) -> BaseException:
    if isinstance(error, CallFailed | CallTimeout | TooManyFailures):
        # Its text has the frames, and a mark.
        send_text_alone()
        return error
    if not isinstance(error, IN_WORDS) and not any(map(user_frames, links(error))):
        return error
    text = " ".join(str(error).partition(_BEFORE_TRACEBACK)[0].split())
    frames = frames_of(error)
    kind = type(error)
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    shown: BaseException = type(kind.__name__, (Exception,), about)(
        visible(marked(f"{text}\n{frames}" if frames else text, error))
    )
    shown.__suppress_context__ = True
    send_text_alone()
    return shown
