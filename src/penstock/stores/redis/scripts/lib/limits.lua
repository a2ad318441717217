-- The limits of a queue: how many jobs may be fetched now, when more may be, and whether a new job may be stored.
-- The arithmetic is that of stores/rate_limiter.py, which explains it. `limits` in the queue's meta are ten doubles, in
-- the order of RULES below; stored_limits.py packs them.
-- needs: clock states queue

local AHEAD, LEAD, NOISE = 20, 10, 0.001
local SPAN, LEAST, SOONEST, LATEST, UNKNOWN = 5000, 200, 10, 60000, 1000
local SHORTEST_THROTTLE, LONGEST_THROTTLE = 100, 86400000
local RULES = {
  'max_size', 'waits', 'max_running', 'count', 'per', 'burst', 'keep_finished', 'keep_dead', 'finished_for', 'dead_for',
}

local function rules_of(m)
  if m.rules then return m.rules end
  local rules = {}
  if m.limits then
    local values = {struct.unpack(LIMITS, m.limits)}
    for i, name in ipairs(RULES) do
      if values[i] ~= NONE then rules[name] = values[i] end
    end
    if rules.count then rules.step = rules.per / rules.count end
  end
  m.rules = rules
  return rules
end

-- When the next start is due at an even rate; now if that is past, or impossibly far ahead.
local function base_of(queue, m, rules)
  m.next_start = m.next_start or tonumber(redis.call('HGET', queue .. ':meta', 'next_start')) or 0
  local ahead = m.next_start - now
  return ahead > 0 and ahead <= AHEAD + rules.burst * rules.step + 1 and m.next_start or now
end

-- How many jobs may be fetched now; and if none, when some may be (nil: only after a running job ends).
local function room_of(queue, m)
  local rules, room, opens_at = rules_of(m), math.huge, nil
  if m.throttled_until then
    if m.throttled_until > now then
      opens_at = m.throttled_until
    else
      redis.call('HDEL', queue .. ':meta', 'throttled_until')
      m.throttled_until = nil
    end
  end
  if rules.max_running then
    room = rules.max_running - redis.call('HLEN', queue .. ':held')
    if room <= 0 then return 0 end
  end
  if rules.step then
    local first = base_of(queue, m, rules) - (rules.burst - 1) * rules.step
    local slots = (now + AHEAD - first) / rules.step
    if slots < 0 then
      opens_at = math.max(opens_at or 0, math.ceil(first - NOISE) - LEAD)
    else
      room = math.min(room, math.floor(slots) + 1)
    end
  end
  if opens_at then return 0, opens_at end
  return room
end

-- Count one fetched job; returns when it may start. `store_starts` stores what was counted.
local function count_start(queue, m)
  local rules = rules_of(m)
  m.fetched = (m.fetched or 0) + 1
  if not rules.step then return now end
  local base = base_of(queue, m, rules)
  m.next_start, m.next_start_changed = base + rules.step, true
  return math.max(now, math.ceil(base - (rules.burst - 1) * rules.step - NOISE))
end

-- How fast jobs have left the queue recently: a decaying count of fetched jobs, its time, and since when it counts.
local function drain_of(queue)
  local text = redis.call('HGET', queue .. ':meta', 'drained')
  if not text or #text ~= 24 then return 0, 0, 0 end
  return struct.unpack('<ddd', text)
end

-- Store the rate limiter and the drain rate, after the calls of `count_start`.
local function store_starts(queue, m)
  if m.next_start_changed then
    redis.call('HSET', queue .. ':meta', 'next_start', string.format('%.17g', m.next_start))
    m.next_start_changed = nil
  end
  if m.fetched and rules_of(m).max_size then
    local count, at, since = drain_of(queue)
    if now - at > 2 * SPAN or now < at then count, since, at = 0, now, now end
    count = count * math.exp((at - now) / SPAN) + m.fetched
    redis.call('HSET', queue .. ':meta', 'drained', struct.pack('<ddd', count, now, since))
  end
  m.fetched = nil
end

-- Estimate the time (ms) until this many jobs have left the queue.
local function retry_after(queue, needed)
  local count, at, since = drain_of(queue)
  if count <= 0 then return UNKNOWN end
  local seen = math.max(LEAST, SPAN * (1 - math.exp(-math.max(0, now - since) / SPAN)))
  local per_ms = count * math.exp(math.min(0, at - now) / SPAN) / seen
  if per_ms <= 0 then return LATEST end
  return math.max(SOONEST, math.ceil(math.min(LATEST, needed / per_ms)))
end

-- Count one new job, or n, against max_size. If there is no room, returns the refusal: "1 if enqueues wait, or 0;
-- retry_after (ms); max_size".
local function count_new(queue, m, n)
  n = n or 1
  local rules = rules_of(m)
  if not rules.max_size then return nil end
  if not m.size then
    m.size = redis.call('HLEN', queue .. ':jobs') - redis.call('HLEN', queue .. ':held')
    m.size = m.size - redis.call('ZCARD', queue .. ':state/' .. SUSPENDED)
    for state = COMPLETED, DEAD do m.size = m.size - redis.call('ZCARD', queue .. ':ended/' .. state) end
  end
  if m.size + n <= rules.max_size then
    m.size = m.size + n
    return nil
  end
  m.refused = (m.refused or 0) + n
  local wait = retry_after(queue, m.size - rules.max_size + m.refused)
  return string.format('%d %.0f %.0f', rules.waits or 0, wait, rules.max_size)
end

-- Throttle the queue for `ms`.
local function throttle(queue, m, ms)
  m.throttled_until = math.max(m.throttled_until or 0, now + math.min(math.max(ms, SHORTEST_THROTTLE), LONGEST_THROTTLE))
  m.limited = true
  save()
  redis.call('HSET', queue .. ':meta', 'throttled_until', string.format('%.0f', m.throttled_until))
end

-- The number of ended jobs in a state that exceed what is kept of it, by number or by age.
local function excess_of(queue, m, state, keep_finished, keep_dead)
  local rules, dead, ended = rules_of(m), state == DEAD, queue .. ':ended/' .. state
  local keep = dead and (rules.keep_dead or keep_dead) or (not dead and (rules.keep_finished or keep_finished))
  local age = dead and rules.dead_for or (not dead and rules.finished_for)
  local many = redis.call('ZCARD', ended) - math.max(0, keep)
  if age then many = math.max(many, redis.call('ZCOUNT', ended, '-inf', string.format('%.0f', now - age))) end
  return math.max(0, many)
end
