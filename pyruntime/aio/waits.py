"""Says what an operator waits for, when nothing goes on for some seconds: in the log, and in its totals.

Confined to the mailbox thread; `WaitReporter.text` is for any thread.
"""

# Each wait has its reason, and each ends by itself or not at all; who looks at a bar that stands still cannot
# tell which. The operator is looked at anyway, for what its time goes on, so that to say it costs a row
# nothing. Three seconds are more than any usual pause, and less than a person takes to worry.

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from pillarbox.aio.totals import seconds
from pillarbox.redaction import redacted

log = logging.getLogger("pillarbox")

SAY_AFTER_S = 3.0
"""Seconds of waiting after which it is said."""
AGAIN_AFTER_S = (60.0, 300.0)
"""Seconds of waiting after which it is said again; then after each as many more."""


class Wait(NamedTuple):
    """A reason to wait. kind: the same for as long as it is one wait. text: says it as it is now.

    level: that of the log. counts: what changes when something goes on after all; None where nothing counts.
    """

    kind: str
    text: Callable[[], str]
    level: int
    counts: Any = None


class WaitReporter:
    """Logs a wait when it has lasted for `SAY_AFTER_S`, and its end. name: the function's."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.text: str | None = None
        """The wait of now, in words; None while it is not worth saying."""
        self._name = name
        self._clock = clock
        self._wait: Wait | None = None
        self._since = 0.0
        self._says_at = SAY_AFTER_S

    def look(self, wait: Wait | None) -> None:
        """The operator waits so now, or for nothing."""
        now = self._clock()
        before = self._wait
        if wait is None or before is None or (wait.kind, wait.counts) != (before.kind, before.counts):
            if self.text is not None and before is not None:
                log.log(before.level, "%s goes on, after %s", self._name, seconds(now - self._since))
            self._wait, self._since, self.text, self._says_at = wait, now, None, SAY_AFTER_S
            return
        waited = now - self._since
        if waited < SAY_AFTER_S:
            return
        # The holder of a lease, for one, may be called anything.
        self.text = redacted(wait.text())
        if waited >= self._says_at:
            log.log(wait.level, "%s has waited for %s: %s", self._name, seconds(waited), self.text)
            later = [each for each in AGAIN_AFTER_S if each > waited]
            self._says_at = later[0] if later else waited + AGAIN_AFTER_S[-1]
