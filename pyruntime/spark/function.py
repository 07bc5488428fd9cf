"""The user's function, and the task that calls it, on their way to the workers. On the driver's thread."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from pillarbox.aio.errors import shorten
from pillarbox.aio.function import check_function
from pillarbox.aio.options import Options


def check_sendable(fn: Callable[..., Any], options: Options) -> str:
    """Check that `fn` can be called as `options` say, and both be sent; returns the identity of `fn` there.

    The identity is that of the pickled function, so the same function shares its resource in a worker.
    The function itself still goes the way of Spark's own, which also knows broadcast variables.
    Raises TypeError.
    """
    check_function(fn, in_batches=options.batch is not None)
    try:
        pickled: bytes = cloudpickle.dumps(fn)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TypeError(
            f"fn={shorten(fn)}: cannot be sent to Spark's workers ({type(error).__name__}: {error}); "
            "open clients and connections in __aenter__ of an object instead"
        ) from error
    try:
        cloudpickle.dumps(options)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TypeError(
            f"the options cannot be sent to Spark's workers ({type(error).__name__}: {error}); "
            "look at the functions among them"
        ) from error
    return hashlib.sha256(pickled).hexdigest()


def name_of(fn: Callable[..., Any]) -> str:
    """The name of `fn` in plans, in the user interface of Spark, and of a column that it makes."""
    return str(getattr(fn, "__name__", type(fn).__name__))


def use_driver_python(session: Any) -> None:
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


class Shipment:
    """A function that becomes `run` where it is unpickled. Any thread of the driver.

    called: what it does where it is called on the driver; `run` itself if None.
    """

    def __init__(self, run: Callable[..., Any], name: str, called: Callable[..., Any] | None = None) -> None:
        self._run = run
        self._called = called
        self.__name__ = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The result of the function, on the driver."""
        return (self._called or self._run)(*arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        # While Spark pickles, so that it sees the broadcast variables in it.
        return _loader(), (cloudpickle.dumps(self._run), self.__name__)  # type: ignore[no-untyped-call]


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
            raise ModuleNotFoundError(
                f"{name} cannot run: the Python of Spark's worker, {sys.executable} on "
                f"{socket.gethostname()}, has no module {str(error.name)!r}; install it there, or set "
                "PYSPARK_PYTHON to a Python that has it",
                name=error.name,
            ) from None

    return load
