"""What tasks of one job, or of several, share their limits through where there is a Redis: the extra `redis`.

`RedisCoordinator` is a value: safe in any thread. Its gates belong to the mailbox thread, and use its loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import random
import uuid
from typing import Any

from pillarbox.aio.limits.book import GRACE
from pillarbox.aio.limits.client import LEAVE_TIMEOUT_S
from pillarbox.aio.limits.lease import DUST, LeaseGate
from pillarbox.aio.limits.redis_script import SCRIPT
from pillarbox.aio.limits.shared import Limits, SharedLimits, check_name
from pillarbox.rpc.client import FIRST_PAUSE_S, MAX_PAUSE_S
from pillarbox.rpc.loop_thread import end
from pillarbox.rpc.redis_url import RedisUrl
from pillarbox.validate import check_duration, check_positive_number

ANSWER = 5.0
"""Seconds for Redis to answer."""
MISSING = "RedisCoordinator needs the package redis, here and where tasks run: pip install pillarbox[redis]"
AGAIN = 0.005
"""Seconds until who has got only a part of what he wanted asks again."""
BEAT = 1.0
"""Seconds until a task that has nothing to say says so, for a Redis that may have forgotten it."""
KEEP = 86_400.0


class RedisCoordinator(SharedLimits):
    """Shares `rate`, `max_calls` and `max_cost` among all who use one Redis and one name, over jobs too.

    url: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://. The password is
        never shown.
    name: of the limits, 1 to 200 characters. None lets each operator have limits of its own.
    patience: seconds for which a task that needs calls waits for Redis before the job fails.
    keep: seconds after the last use in which Redis forgets the sums of a name.

    Tasks take what they need for a tenth of a second at a time, so that a call costs no round trip. All is
    counted in one script, in the time of Redis. What a task held that died counts as used: `max_calls` is
    never exceeded, and a tenth of a second of calls may be missing. A Redis that forgets is told again by the
    tasks that are there.

    Raises TypeError or ValueError for a bad argument, ImportError without the package `redis`.
    """

    def __init__(
        self, url: str, name: str | None = None, *, patience: float = 60.0, keep: float = KEEP
    ) -> None:
        self._url = RedisUrl(url)
        seconds = check_duration("patience", patience, above_zero=True)
        if importlib.util.find_spec("redis") is None:
            raise ImportError(MISSING)
        self.name = None if name is None else check_name(name)
        self._patience = seconds
        self._keep = check_positive_number("keep", keep)

    def open(self, limits: Limits) -> RedisGate:
        """See `SharedLimits.open`."""
        name = "shared" if self.name is None else self.name
        return RedisGate(self._url, str(self), name, limits, self._patience, self._keep)

    def named(self, name: str | None = None) -> RedisCoordinator:
        """See `SharedLimits.named`."""
        if name is None:
            if self.name is not None:
                return self
            name = uuid.uuid4().hex
        return RedisCoordinator(self._url.text, name, patience=self._patience, keep=self._keep)

    def __repr__(self) -> str:
        return f"<limits {self.name!r} in {self._url!r}>"


class RedisGate(LeaseGate):
    """A `LeaseGate` whose calls come from Redis. One question at a time, and each says everything."""

    def __init__(
        self, url: RedisUrl, shown: str, name: str, limits: Limits, patience: float, keep: float
    ) -> None:
        super().__init__(limits)
        # What a task that died had left counts as used, so calls need not be said before they begin.
        self._strict = False
        self._url = url
        self._shown = shown
        self._patience = patience
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._cool_for = -1.0
        self._leaving: tuple[int, float] | None = None
        self._left = False
        self._number = 0
        self._id = uuid.uuid4().hex
        self._key = f"pillarbox:limits:{{{name}}}"
        self._setting = [
            " ".join(str(None if value is None else float(value)) for value in limits),
            limits.per_second or 0,
            limits.units_per_second or 0,
            0 if limits.per_second is None else limits.capacity(limits.per_second, 1.0),
            0
            if limits.units_per_second is None
            else limits.capacity(limits.units_per_second, limits.units_per_second * limits.life),
            limits.max_calls or 0,
            limits.max_cost or 0,
            keep,
            limits.life + GRACE,
            self._id,
        ]

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._guarded(self._run()))

    def _tell_want(self) -> None:
        self._news.set()

    def _tell_report(self) -> bool:
        self._news.set()
        return True

    def _tell_cool_down(self, seconds: float) -> None:
        self._cool_for = max(self._cool_for, seconds)
        self._news.set()

    async def _finish(self, unspent: int, units: float) -> None:
        task = self._task
        if task is None:
            return
        self._leaving = unspent, units
        self._news.set()
        if self._number:
            await asyncio.wait([task], timeout=LEAVE_TIMEOUT_S)
        await end(task)

    async def _run(self) -> None:
        try:
            import redis.asyncio
            from redis.exceptions import RedisError
        except ImportError:
            self._fail(MISSING)
            return
        client = redis.asyncio.from_url(self._url.text, socket_timeout=ANSWER, socket_connect_timeout=ANSWER)
        script = client.register_script(SCRIPT)
        pause = FIRST_PAUSE_S
        lost_at = self._clock()
        try:
            while not self._left:
                try:
                    wait = await self._ask_redis(script)
                    lost_at = self._clock()
                    pause = FIRST_PAUSE_S
                except (RedisError, OSError, asyncio.TimeoutError) as error:
                    self.connected = False
                    if self._held_back_for(lost_at) >= self._patience:
                        detail = self._url.hide(error)
                        self._fail(f"no Redis for patience={self._patience:g} s: {self._shown} ({detail})")
                        return
                    await asyncio.sleep(random.uniform(0.0, pause))
                    pause = min(pause * 2, MAX_PAUSE_S)
                    continue
                if self._failure is not None:
                    return
                await self._news_or(wait)
        finally:
            await client.aclose()

    async def _news_or(self, seconds: float) -> None:
        """Wait until there is something to say, or to ask again."""
        timeout = BEAT
        if self._wanted_calls > 0 or self._wanted_units > DUST:
            # Not all at the same moment.
            timeout = max(seconds, AGAIN) * random.uniform(1.0, 1.2)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout)

    async def _ask_redis(self, script: Any) -> float:
        """Say what has been done and what is wanted; gives the seconds after which to ask again."""
        self._news.clear()
        self._number += 1
        cooling, self._cool_for = self._cool_for, -1.0
        leaving = self._leaving
        unspent, units = leaving or (0, 0.0)
        wanted = max(0, self._wanted_calls), max(0.0, self._wanted_units), self._wanted_head
        said = [
            self._number,
            *self.report(),
            *wanted,
            cooling,
            int(leaving is not None),
            unspent,
            units,
            *(self._before or ("", 0, 0.0)),
        ]
        try:
            answer = await script(keys=[self._key], args=[*self._setting, *said])
        except BaseException:
            self._cool_for = max(self._cool_for, cooling)
            raise
        calls, granted_units, wait, cool, why, other = (
            each.decode() if isinstance(each, bytes) else each for each in answer
        )
        if leaving is not None:
            self._left = True
            return 0.0
        if not self.connected:
            self._connection(True)
        if other:
            self._fail(f"the limits of {self._shown} are shared, and others have {other}")
        elif why:
            self._over(f"{why}={getattr(self.limits, why)}")
        left = float(cool)
        if left > max(0.0, self._cool_until - self._clock()) + 0.002:
            self._cooled(left)
        if int(calls) or float(granted_units):
            self._granted(int(calls), float(granted_units))
        return float(wait)
