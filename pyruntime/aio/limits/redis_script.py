"""The accounts of a gate in Redis: one script, which Redis runs as one step. A text, safe in any thread.

It is `Book` in Lua, with two differences. Redis cannot tell the others, so who waits asks again.
And a task that has gone is taken to have used all that it held, for nobody saw what it did last.

One hash holds a gate: the levels of its buckets and when they were so, sums, and a field for each task. Time
is that of Redis (TIME). If it is set back, nothing refills until it has caught up with the last use.

KEYS[1]: the hash. ARGV: the limits as text, per_second, units_per_second, capacity of requests, capacity of
units, max_calls, max_cost (0 for none), life of a hash, seconds until a task is given up; then the task, its
number of the message, received, used, back, cost; wanted calls, wanted units, units of the next call; a
cool-down (-1 for none); 1 if the task ends, and then what goes back to the buckets: calls, units; what was
spent before: its name ('' for nothing), calls, cost.
Answers with: calls, units, seconds to wait, seconds of cool-down left, what is used up, other limits.
"""

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
local gate = {}
for i, name in ipairs(names) do
  if name == 'limits' or name == 'turn' then
    gate[name] = found[i] or ''
  else
    gate[name] = tonumber(found[i] or 0)
  end
end
if gate.limits == '' then
  gate.limits, gate.at, gate.requests, gate.weights, gate.swept = ARGV[1], now, capacity, weight_capacity, now
  gate.active = 1
  if a[12] > 0 then
    -- It was known to a Redis that has forgotten all: the others are to say first what they have done.
    gate.requests, gate.weights, gate.cool, gate.cooled = 0, 0, now + 5, 1
  end
elseif gate.limits ~= ARGV[1] then
  return {0, '0', '0', '0', '', gate.limits}
end
local passed = math.max(0, now - gate.at)
gate.at = math.max(now, gate.at)
gate.requests = math.min(capacity, gate.requests + passed * rate)
gate.weights = math.min(weight_capacity, gate.weights + passed * weight_rate)

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
gate.used = gate.used + used - task.used - task.lost
gate.committed = gate.committed + (granted - back) - (task.granted - task.back)
gate.cost = gate.cost + cost - task.cost
task = {number = a[11], granted = granted, used = used, back = back, cost = cost, lost = 0, seen = now,
        served = math.max(task.served, gate.served)}

-- What was spent before, as a ledger says; each name counts once.
if ARGV[23] ~= '' and redis.call('HSETNX', key, 'before:' .. ARGV[23], 1) == 1 then
  gate.used, gate.committed, gate.cost = gate.used + a[24], gate.committed + a[24], gate.cost + a[25]
end

-- Tasks that have gone.
if now - gate.swept > give_up then
  gate.swept, gate.active = now, 1
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if all[i] ~= field and string.sub(all[i], 1, 5) == 'task:' then
      local other = read(all[i + 1])
      local held = other.granted - other.used - other.back - other.lost
      if now - other.seen < give_up then
        gate.active = gate.active + 1
      elseif held > 0 then
        other.lost = other.lost + held
        gate.used = gate.used + held
        write(all[i], other)
      elseif now - other.seen > 3600 then
        redis.call('HDEL', key, all[i])
      end
    end
  end
end

if a[19] >= 0 then
  gate.cool, gate.cooled = math.max(gate.cool, now + a[19]), 1
end
local why = ''
if max_calls > 0 and gate.used >= max_calls then why = 'max_calls'
elseif max_cost > 0 and gate.cost >= max_cost then why = 'max_cost' end

local calls, units, wait = a[16], a[17], 0
if a[20] == 1 then
  gate.requests = math.min(capacity, gate.requests + a[21])
  gate.weights = math.min(weight_capacity, gate.weights + a[22])
  calls, units = 0, 0
elseif why ~= '' then
  calls, units = 0, 0
elseif now < gate.cool then
  calls, units, wait = 0, 0, gate.cool - now
elseif calls > 0 or units > 0 then
  local share = 0.05 / math.max(1, gate.active)
  local head = a[18]
  if gate.cooled == 1 then
    gate.cooled = 0
    gate.requests = math.min(gate.requests, 1)
    gate.weights = math.min(gate.weights, head)
  end
  if now >= gate.turn_until then gate.turn = '' end
  -- Who got least so far is next (start-time fair queueing, as in Book).
  if gate.turn ~= '' and gate.turn ~= field and gate.turn_served <= task.served then wait = 0.02 end
  if calls > 0 and max_calls > 0 then
    local left = max_calls - gate.committed
    if left <= 0 then wait = math.max(wait, 0.1) end
    calls = math.min(calls, math.max(1, math.floor(left / (2 * math.max(1, gate.active)))))
  end
  if calls > 0 and rate > 0 then
    if gate.requests < 1 then wait = math.max(wait, (1 - gate.requests) / rate) end
    calls = math.min(calls, math.max(1, math.floor(math.min(gate.requests, rate * share))))
  end
  if weight_rate > 0 then
    local lacking = math.min(head, weight_capacity) - gate.weights
    if lacking > 0 and units > 0 then
      wait = math.max(wait, lacking / weight_rate)
      if gate.turn == '' or task.served < gate.turn_served then
        gate.turn, gate.turn_until, gate.turn_served = field, now + wait + 0.5, task.served
      elseif gate.turn ~= field then
        wait = math.min(wait, 0.05)
      end
    end
    units = math.max(head, math.min(units, gate.weights, weight_rate * share))
  else
    units = 0
  end
  if wait > 0 then
    calls, units = 0, 0
  else
    if gate.turn == field then gate.turn, gate.turn_until = '', 0 end
    if rate > 0 then gate.requests = gate.requests - calls end
    if weight_rate > 0 then
      gate.weights = gate.weights - units
      gate.served, task.served = task.served, task.served + units
    end
    task.granted = task.granted + calls
    gate.committed = gate.committed + calls
  end
else
  calls, units = 0, 0
end

write(field, task)
local fields = {}
for i, name in ipairs(names) do
  fields[2 * i - 1] = name
  local item = gate[name]
  fields[2 * i] = type(item) == 'number' and text(item) or item
end
redis.call('HSET', key, unpack(fields))
redis.call('PEXPIRE', key, math.ceil(keep * 1000))
return {calls, text(units), text(wait), text(math.max(0, gate.cool - now)), why, ''}
"""
