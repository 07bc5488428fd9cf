"""Objects that a ring around the core provides, by their names: the core imports no ring.

A name is `module:attribute`, as entry points are written. Any thread.
"""

# A function says by such a name how it becomes a column (`Chat.column_adapter`), so the core needs not know
# the client. One name is the core's own: budgets of local jobs need a coordinator that the user has not made.

from __future__ import annotations

from importlib import import_module
from typing import Any

LOCAL_COORDINATOR = "pillarbox.aio.limits.coordinator:local_coordinator"
"""A function without arguments: the `SharedLimits` of this process for the tasks on this machine."""


def provided(name: str, option: str) -> Any:
    """Return the object called `name`.

    option: what needs it, for the error. Raises ModuleNotFoundError where its module is not installed, and
    AttributeError where the module lacks it.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ModuleNotFoundError(
            f"{option}: needs {module}, which is not installed; install all of Pillarbox",
            name=error.name,
        ) from None
