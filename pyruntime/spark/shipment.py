"""Functions and objects on their way to a worker: what they are there, and what they say is missing.

Any thread of the driver; what is unpickled, in a worker.
"""

# Why the connection is made prompt where the function is unpickled, and not only where it runs. Spark writes
# the function, and behind it the first rows: those wait for an acknowledgement of the function (see
# `task_connection`), which a worker whose last task was another's holds back for 40 ms.

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pillarbox.providers import SHOW_ERRORS, provided_if_there
from pillarbox.redaction import errors_in_utf8
from pillarbox.spark.task_connection import make_prompt, through_prompt_connection
from pillarbox.spark.worker_errors import errors_in_words


def use_driver_python(session: object) -> None:
    """Have the workers of a local session run the Python of this process, unless another is configured.

    Otherwise Spark starts the `python3` on the `PATH`, which is rarely the one of a virtual environment.
    Over Connect the workers belong to the server, so nothing is changed. For all Python functions of the
    session from now on: workers of one Python are shared.
    """
    context = getattr(session, "_sc", None)
    if context is None or not sys.executable or os.environ.get("PYSPARK_PYTHON"):
        return
    if context.master.startswith("local") and context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = sys.executable


def active_session() -> SparkSession | None:
    """The session of this thread, or that of the process: a thread that made none has none of its own."""
    try:
        return SparkSession.active()
    except PySparkException:
        return None


def ship(run: Callable[[Iterator[Any]], Iterator[Any]], name: str) -> Callable[..., Iterator[Any]]:
    """A function called `name` that does in a worker what `run` does, and can say there what is missing.

    A worker unpickles its function before it runs any code of ours, so a function that refers to Pillarbox
    ends on a machine without it in Spark's own traceback. This one is pickled by its code, as nested
    functions are, and holds `run` as bytes.
    """
    shipment = Shipment(run, name)

    def shipped(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        results: Iterator[pa.Array] = shipment(batches)
        return results

    shipped.__name__ = name
    return shipped


def _run_in_utf8(run: Callable[[Iterator[Any]], Iterator[Any]], batches: Iterator[Any]) -> Iterator[Any]:
    """The results of `run`, whose errors Spark can write and show, over a prompt connection. In a worker."""
    return through_prompt_connection(errors_in_utf8(run)(batches), errors_in_words())


class Shipment:
    """A function that becomes `run` where it is unpickled, with errors in UTF-8. Any thread of the driver.

    called: what it does where it is called on the driver; `run` itself if None.
    """

    def __init__(self, run: Callable[..., Any], name: str, called: Callable[..., Any] | None = None) -> None:
        self._run = run
        self._called = called
        self.__name__ = name
        if (show := provided_if_there(SHOW_ERRORS)) is not None:
            show()

    def __call__(self, *arguments: object, **named: object) -> Any:
        """The result of the function, on the driver."""
        return (self._called or self._run)(*arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        # While Spark pickles, so that it sees the broadcast variables in it.
        return reduced(self.__name__, partial, _run_in_utf8, self._run)


def reduced(name: str, make: Callable[..., Any], *arguments: object) -> tuple[Any, ...]:
    """Return what `__reduce__` gives of an object that `make(*arguments)` makes anew in a worker.

    A worker that lacks a module says there that `name` cannot run, as for a function.
    """
    return _loader(), (cloudpickle.dumps(_Made(make, arguments)), name)  # type: ignore[no-untyped-call]


class _Made:
    """Stands for the result of a call, which is made where this is unpickled. Any thread."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._call = make, *arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_promptly, self._call


def _made_promptly(make: Callable[..., Any], *arguments: object) -> Any:
    """Make an object that Spark has sent, and have what it sends behind that arrive at once. In a worker."""
    make_prompt()
    return make(*arguments)


def _loader() -> Callable[[bytes, str], Any]:
    # Nested, so that it is pickled by its code; it may refer to nothing outside of itself.
    def load(pickled: bytes, name: str) -> Any:
        import os
        import pickle
        import socket
        import sys

        try:
            return pickle.loads(pickled)
        except ModuleNotFoundError as error:
            # The worker ends with this error, and tells the driver its text without a traceback.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            package = str(error.name).split(".")[0]
            words = "pillarbox pack" if package == "pillarbox" else f"pillarbox pack --include {package}"
            # The last line is that of `marked`, which is not here.
            raise ModuleNotFoundError(
                f"{name} cannot run: the Python of Spark's worker, {sys.executable} on "
                f"{socket.gethostname()}, has no module {str(error.name)!r}; send it along (`{words}`), "
                "install it there, or set PYSPARK_PYTHON to a Python that has it\n"
                '[pillarbox] {"error": "ModuleNotFoundError"}',
                name=error.name,
            ) from None

    return load
