"""Policies of calls: one interface for what decides about them, such as a choice of endpoints or a log.

`Options(policies=[...])` takes objects derived from `CallPolicy`.
"""

from __future__ import annotations

from pillarbox.aio.policy import FINAL, Again, CallPolicy, CallSuperseded, Found, PolicyServices

__all__ = ["FINAL", "Again", "CallPolicy", "CallSuperseded", "Found", "PolicyServices"]
