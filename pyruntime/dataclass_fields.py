"""Dataclasses of a script or notebook behind a pickle: their fields without a default stay so. Any thread.

Imported by the modules that look at the fields of a user's dataclass.
"""

# Such a class is sent to Spark's workers by value, with all that its fields hold. The mark of "no default" is
# compared by `is`, and would be another object there. Pickled by its name, as objects of modules are, it is
# the one of the standard library again. The pickler of every process asks this table, cloudpickle's too.

from __future__ import annotations

import copyreg
from dataclasses import MISSING

__all__ = ["MISSING"]

copyreg.pickle(type(MISSING), lambda missing: "MISSING")
