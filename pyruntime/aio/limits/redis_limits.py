"""Limits that the tasks of one job, or of several, share through a Redis: the extra `redis`.

`RedisCoordinator` is a value: safe in any thread. Its limiters belong to the mailbox thread, and use its
loop.
"""

# `SCRIPT` is `QuotaAllocator` in Lua: Redis runs it as one step. `QuotaAllocator` itself, with its state in
# Redis and a transaction around each use (WATCH), would be a tenth of the lines; but two round trips for
# each request, and with a hundred tasks most transactions would be in vain. Two things differ from a
# coordinator. Redis cannot tell the others, so a task that waits asks again. And a task that has gone is
# taken to have used all that it held, for nobody saw what it did last.
#
# One hash holds a set of limits: the levels of its buckets and when they were so, sums, and a field for each
# task. Time is that of Redis (TIME). If it is set back, nothing refills until it has caught up with the
# last use.
#
# KEYS[1]: the hash. ARGV: the limits as text, per_second, units_per_second, capacity of requests, capacity of
# units, max_calls, max_cost (0 for none), life of a hash, seconds until a task is given up; then the task,
# its number of the message, received, used, back, cost; wanted calls, wanted units, units of the next call;
# a cool-down (-1 for none); 1 if the task ends, and then what goes back to the buckets: calls, units; what
# was spent before: its name ('' for nothing), calls, cost. Answers with: calls, units, seconds to wait,
# seconds of cool-down left, what is used up, other limits.

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib.util
import random
import uuid
from typing import Any

from pillarbox.aio.limits.lease import LEAVE_TIMEOUT_S, UNITS_TOLERANCE, LeasedLimiter
from pillarbox.aio.limits.quota import RETURN_TIMEOUT_S
from pillarbox.aio.limits.shared import SHARED_NAME, Limits, SharedLimits, check_name, new_name
from pillarbox.rpc.client import FIRST_PAUSE_S, MAX_PAUSE_S
from pillarbox.rpc.loop_thread import end
from pillarbox.rpc.redis_url import RedisUrl
from pillarbox.validate import check_duration, check_positive_number

ANSWER_TIMEOUT_S = 5.0
MISSING_REDIS = (
    "RedisCoordinator needs the package redis, here and where tasks run: pip install pillarbox[redis]"
)
ASK_INTERVAL_S = 0.005
"""Seconds until a task that has got only a part of what it wanted asks again."""
HEARTBEAT_INTERVAL_S = 1.0
"""Seconds until a task that has nothing to say says so, for a Redis that may have forgotten it."""
DEFAULT_KEEP_S = 86_400.0

SCRIPT = """
local key = KEYS[1]
local a = {}
for i = 2, #ARGV do a[i] = tonumber(ARGV[i]) end
local rate, weight_rate, capacity, weight_capacity = a[2], a[3], a[4], a[5]
local max_calls, max_cost, keep, give_up = a[6], a[7], a[8], a[9]
local field = 'task:' .. ARGV[10]

local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local function text(number) return string.format('%.17g', number) end

local names = {'limits', 'at', 'requests', 'weights', 'committed', 'used', 'cost', 'cool', 'cooled', 'swept',
               'active', 'turn', 'turn_until', 'turn_served', 'served'}
local found = redis.call('HMGET', key, unpack(names))
local sums = {}
for i, name in ipairs(names) do
  if name == 'limits' or name == 'turn' then
    sums[name] = found[i] or ''
  else
    sums[name] = tonumber(found[i] or 0)
  end
end
if sums.limits == '' then
  sums.limits, sums.at, sums.requests, sums.weights, sums.swept = ARGV[1], now, capacity, weight_capacity, now
  sums.active = 1
  if a[12] > 0 then
    -- It was known to a Redis that has forgotten all: the others are to say first what they have done.
    sums.requests, sums.weights, sums.cool, sums.cooled = 0, 0, now + 5, 1
  end
elseif sums.limits ~= ARGV[1] then
  return {0, '0', '0', '0', '', sums.limits}
end
local passed = math.max(0, now - sums.at)
sums.at = math.max(now, sums.at)
sums.requests = math.min(capacity, sums.requests + passed * rate)
sums.weights = math.min(weight_capacity, sums.weights + passed * weight_rate)

local function read(value)
  local number, granted, used, back, cost, lost, seen, served = string.match(value,
    '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  return {number = tonumber(number), granted = tonumber(granted), used = tonumber(used),
          back = tonumber(back), cost = tonumber(cost), lost = tonumber(lost), seen = tonumber(seen),
          served = tonumber(served)}
end
local function write(name, task)
  redis.call('HSET', key, name, table.concat({task.number, task.granted, task.used, task.back,
    text(task.cost), task.lost, text(task.seen), text(task.served)}, ' '))
end

-- What the task says. It says all of it each time, so an answer that was lost does no harm.
local value = redis.call('HGET', key, field)
local task = value and read(value)
  or {number = -1, granted = 0, used = 0, back = 0, cost = 0, lost = 0, seen = now, served = 0}
if a[11] <= task.number then
  return {0, '0', '0', '0', '', ''}
end
local used, back = math.max(task.used, a[13]), math.max(task.back, a[14])
local cost = math.max(task.cost, a[15])
local granted = math.max(a[12], used + back)
sums.used = sums.used + used - task.used - task.lost
sums.committed = sums.committed + (granted - back) - (task.granted - task.back)
sums.cost = sums.cost + cost - task.cost
task = {number = a[11], granted = granted, used = used, back = back, cost = cost, lost = 0, seen = now,
        served = math.max(task.served, sums.served)}

-- What was spent before, as a ledger says; each name counts once.
if ARGV[23] ~= '' and redis.call('HSETNX', key, 'before:' .. ARGV[23], 1) == 1 then
  sums.used, sums.committed, sums.cost = sums.used + a[24], sums.committed + a[24], sums.cost + a[25]
end

-- Tasks that have gone.
if now - sums.swept > give_up then
  sums.swept, sums.active = now, 1
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if all[i] ~= field and string.sub(all[i], 1, 5) == 'task:' then
      local other = read(all[i + 1])
      local held = other.granted - other.used - other.back - other.lost
      if now - other.seen < give_up then
        sums.active = sums.active + 1
      elseif held > 0 then
        other.lost = other.lost + held
        sums.used = sums.used + held
        write(all[i], other)
      elseif now - other.seen > 3600 then
        redis.call('HDEL', key, all[i])
      end
    end
  end
end

if a[19] >= 0 then
  sums.cool, sums.cooled = math.max(sums.cool, now + a[19]), 1
end
local why = ''
if max_calls > 0 and sums.used >= max_calls then why = 'max_calls'
elseif max_cost > 0 and sums.cost >= max_cost then why = 'max_cost' end

local calls, units, wait = a[16], a[17], 0
if a[20] == 1 then
  sums.requests = math.min(capacity, sums.requests + a[21])
  sums.weights = math.min(weight_capacity, sums.weights + a[22])
  calls, units = 0, 0
elseif why ~= '' then
  calls, units = 0, 0
elseif now < sums.cool then
  calls, units, wait = 0, 0, sums.cool - now
elseif calls > 0 or units > 0 then
  local share = 0.05 / math.max(1, sums.active)
  local head = a[18]
  if sums.cooled == 1 then
    sums.cooled = 0
    sums.requests = math.min(sums.requests, 1)
    sums.weights = math.min(sums.weights, head)
  end
  if now >= sums.turn_until then sums.turn = '' end
  -- Who got least so far is next (start-time fair queueing, as in QuotaAllocator).
  if sums.turn ~= '' and sums.turn ~= field and sums.turn_served <= task.served then wait = 0.02 end
  if calls > 0 and max_calls > 0 then
    local left = max_calls - sums.committed
    if left <= 0 then wait = math.max(wait, 0.1) end
    calls = math.min(calls, math.max(1, math.floor(left / (2 * math.max(1, sums.active)))))
  end
  if calls > 0 and rate > 0 then
    if sums.requests < 1 then wait = math.max(wait, (1 - sums.requests) / rate) end
    calls = math.min(calls, math.max(1, math.floor(math.min(sums.requests, rate * share))))
  end
  if weight_rate > 0 then
    local lacking = math.min(head, weight_capacity) - sums.weights
    if lacking > 0 and units > 0 then
      wait = math.max(wait, lacking / weight_rate)
      if sums.turn == '' or task.served < sums.turn_served then
        sums.turn, sums.turn_until, sums.turn_served = field, now + wait + 0.5, task.served
      elseif sums.turn ~= field then
        wait = math.min(wait, 0.05)
      end
    end
    units = math.max(head, math.min(units, sums.weights, weight_rate * share))
  else
    units = 0
  end
  if wait > 0 then
    calls, units = 0, 0
  else
    if sums.turn == field then sums.turn, sums.turn_until = '', 0 end
    if rate > 0 then sums.requests = sums.requests - calls end
    if weight_rate > 0 then
      sums.weights = sums.weights - units
      sums.served, task.served = task.served, task.served + units
    end
    task.granted = task.granted + calls
    sums.committed = sums.committed + calls
  end
else
  calls, units = 0, 0
end

write(field, task)
local fields = {}
for i, name in ipairs(names) do
  fields[2 * i - 1] = name
  local item = sums[name]
  fields[2 * i] = type(item) == 'number' and text(item) or item
end
redis.call('HSET', key, unpack(fields))
redis.call('PEXPIRE', key, math.ceil(keep * 1000))
return {calls, text(units), text(wait), text(math.max(0, sums.cool - now)), why, ''}
"""


class RedisCoordinator(SharedLimits):
    """Shares `rate`, `max_calls` and `max_cost` among all who use one Redis and one name, over jobs too.

    url: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://. The password is
        never shown. In the URL it travels to the tasks, as a part of the job.
    password_env: the name of an environment variable that holds the password instead. It is read where a task
        connects, so it has to be set there (`spark.executorEnv.NAME`), and the password does not travel.
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
        self,
        url: str,
        name: str | None = None,
        *,
        patience: float = 60.0,
        keep: float = DEFAULT_KEEP_S,
        password_env: str | None = None,
    ) -> None:
        self.url = RedisUrl(url, password_env)
        self.patience = check_duration("patience", patience, above_zero=True)
        if importlib.util.find_spec("redis") is None:
            raise ImportError(MISSING_REDIS)
        self.name = None if name is None else check_name(name)
        self.keep = check_positive_number("keep", keep)

    def open(self, limits: Limits) -> RedisLimiter:
        """See `SharedLimits.open`."""
        return RedisLimiter(self, limits)

    def named(self, name: str | None = None) -> RedisCoordinator:
        """See `SharedLimits.named`."""
        if name is None and self.name is not None:
            return self
        named = copy.copy(self)
        named.name = new_name() if name is None else check_name(name)
        return named

    def __repr__(self) -> str:
        return f"<limits {self.name!r} in {self.url!r}>"


class RedisLimiter(LeasedLimiter):
    """A `LeasedLimiter` whose calls come from Redis. One question at a time, and each says everything."""

    def __init__(self, shared: RedisCoordinator, limits: Limits) -> None:
        super().__init__(limits)
        # What a task that died had left counts as used, so calls need not be said before they begin.
        self._strict = False
        self._shared = shared
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._cool_for = -1.0
        self._leaving: tuple[int, float] | None = None
        self._left = False
        self._number = 0
        self._id = uuid.uuid4().hex
        self._key = f"pillarbox:limits:{{{shared.name or SHARED_NAME}}}"
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
            shared.keep,
            limits.life + RETURN_TIMEOUT_S,
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
            self._fail(MISSING_REDIS)
            return
        url = self._shared.url
        client = redis.asyncio.from_url(
            url.text,
            socket_timeout=ANSWER_TIMEOUT_S,
            socket_connect_timeout=ANSWER_TIMEOUT_S,
            **url.arguments(),
        )
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
                    if self._held_back_for(lost_at) >= self._shared.patience:
                        patience = f"patience={self._shared.patience:g} s"
                        self._fail(f"no Redis for {patience}: {self._shared} ({url.hide(error)})")
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
        timeout = HEARTBEAT_INTERVAL_S
        if self._wanted_calls > 0 or self._wanted_units > UNITS_TOLERANCE:
            # Not all at the same moment.
            timeout = max(seconds, ASK_INTERVAL_S) * random.uniform(1.0, 1.2)
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
            self._fail(f"the limits of {self._shared} are shared, and others have {other}")
        elif why:
            self._end_with(f"{why}={getattr(self.limits, why)}")
        left = float(cool)
        if left > max(0.0, self._cool_until - self._clock()) + 0.002:
            self._cooled(left)
        if int(calls) or float(granted_units):
            self._granted(int(calls), float(granted_units))
        return float(wait)
