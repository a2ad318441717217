-- The limits of a queue: how many jobs may be fetched now, when the next one may be, and whether a new job may enter.
-- The arithmetic is that of stores/rate_limiter.py, which explains it. `limits` in the queue's meta are ten doubles, in
-- the order of stored_limits.py.
-- needs: clock states queue

local AHEAD, LEAD, NOISE = 20, 10, 0.001
local SPAN, LEAST, SOONEST, LATEST, NOTHING_KNOWN = 5000, 200, 10, 60000, 1000
local SHORTEST_THROTTLE, LONGEST_THROTTLE = 100, 86400000
local UNSET, PACKED = -9007199254740992, '<dddddddddd'
local RULES = {
  'max_size', 'waits', 'max_running', 'count', 'per', 'burst', 'keep_finished', 'keep_dead', 'finished_for', 'dead_for',
}

local function rules_of(m)
  if m.rules then return m.rules end
  local rules = {}
  if m.limits then
    local values = {struct.unpack(PACKED, m.limits)}
    for i, name in ipairs(RULES) do
      if values[i] ~= UNSET then rules[name] = values[i] end
    end
    if rules.count then rules.step = rules.per / rules.count end
  end
  m.rules = rules
  return rules
end

local function base_of(queue, m, rules)
  m.next_start = m.next_start or tonumber(redis.call('HGET', queue .. ':meta', 'next_start')) or 0
  local ahead = m.next_start - now
  return ahead > 0 and ahead <= AHEAD + rules.burst * rules.step + 1 and m.next_start or now
end

-- How many jobs may be fetched now; if 0, then also when time alone changes that (nil: only the end of a job does).
local function room_of(queue, m)
  local rules, room, opens = rules_of(m), math.huge, nil
  if m.throttled_until then
    if m.throttled_until > now then
      opens = m.throttled_until
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
      opens = math.max(opens or 0, math.ceil(first - NOISE) - LEAD)
    else
      room = math.min(room, math.floor(slots) + 1)
    end
  end
  if opens then return 0, opens end
  return room
end

-- Whether a woken worker gets a job, or learns from its fetch when it will.
local function worth_waking(queue, m)
  local room, opens = room_of(queue, m)
  return room > 0 or opens ~= nil
end

-- Count one fetched job; returns when it may start.
local function next_start(queue, m)
  local rules = rules_of(m)
  m.given = (m.given or 0) + 1
  if not rules.step then return now end
  local base = base_of(queue, m, rules)
  m.next_start, m.next_start_changed = base + rules.step, true
  return math.max(now, math.ceil(base - (rules.burst - 1) * rules.step - NOISE))
end

local function drain_of(queue)
  local text = redis.call('HGET', queue .. ':meta', 'drained')
  if not text or #text ~= 24 then return 0, 0, 0 end
  return struct.unpack('<ddd', text)
end

-- Store the rate limiter after the calls of `next_start`.
local function passed(queue, m)
  if m.next_start_changed then
    redis.call('HSET', queue .. ':meta', 'next_start', string.format('%.17g', m.next_start))
    m.next_start_changed = nil
  end
  if m.given and rules_of(m).max_size then
    local count, at, since = drain_of(queue)
    if now - at > 2 * SPAN or now < at then count, since, at = 0, now, now end
    count = count * math.exp((at - now) / SPAN) + m.given
    redis.call('HSET', queue .. ':meta', 'drained', struct.pack('<ddd', count, now, since))
  end
  m.given = nil
end

local function wait_for(queue, needed)
  local count, at, since = drain_of(queue)
  if count <= 0 then return NOTHING_KNOWN end
  local seen = math.max(LEAST, SPAN * (1 - math.exp(-math.max(0, now - since) / SPAN)))
  local per_ms = count * math.exp(math.min(0, at - now) / SPAN) / seen
  if per_ms <= 0 then return LATEST end
  return math.max(SOONEST, math.ceil(math.min(LATEST, needed / per_ms)))
end

-- Count one new job; returns nothing if there is room, else "1 if enqueues wait, or 0; retry_after (ms); max_size".
local function full(queue, m)
  local rules = rules_of(m)
  if not rules.max_size then return nil end
  if not m.size then
    m.size = redis.call('HLEN', queue .. ':jobs') - redis.call('HLEN', queue .. ':held')
    m.size = m.size - redis.call('ZCARD', queue .. ':state/' .. SUSPENDED)
    for state = COMPLETED, DEAD do m.size = m.size - redis.call('ZCARD', queue .. ':ended/' .. state) end
  end
  if m.size < rules.max_size then
    m.size = m.size + 1
    return nil
  end
  m.refused = (m.refused or 0) + 1
  local wait = wait_for(queue, m.size - rules.max_size + m.refused)
  return string.format('%d %.0f %.0f', rules.waits or 0, wait, rules.max_size)
end

-- Throttle the queue for `ms`.
local function throttle(queue, m, ms)
  m.throttled_until = math.max(m.throttled_until or 0, now + math.min(math.max(ms, SHORTEST_THROTTLE), LONGEST_THROTTLE))
  m.limited = true
  save()
  redis.call('HSET', queue .. ':meta', 'throttled_until', string.format('%.0f', m.throttled_until))
end

-- The number of ended jobs in a state that are beyond the count or age limits.
local function beyond(queue, m, state, keep_finished, keep_dead)
  local rules, dead, ended = rules_of(m), state == DEAD, queue .. ':ended/' .. state
  local keep = dead and (rules.keep_dead or keep_dead) or (not dead and (rules.keep_finished or keep_finished))
  local age = dead and rules.dead_for or (not dead and rules.finished_for)
  local many = redis.call('ZCARD', ended) - math.max(0, keep)
  if age then many = math.max(many, redis.call('ZCOUNT', ended, '-inf', string.format('%.0f', now - age))) end
  return math.max(0, many)
end
