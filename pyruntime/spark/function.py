"""The user's function on its way from the driver to the workers. On the driver's thread."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

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
            f"fn={fn!r}: cannot be sent to Spark's workers ({type(error).__name__}: {error}); "
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
