-- The counters of a queue, its ready lists, and waking its waiters: included by every script that changes jobs.
-- needs: clock states

local function in_steps(command, key, arguments)
  for i = 1, #arguments, 4000 do
    redis.call(command, key, unpack(arguments, i, math.min(i + 3999, #arguments)))
  end
end

-- The reply to an HMGET is joined by reallocating it: of 20 records of 1 MB each costs 4.3 ms, read one by one 2.2 ms.
local LARGE_VALUE = 65536

local function get_many(key, fields)
  if #fields > 1 and redis.call('HSTRLEN', key, fields[1]) > LARGE_VALUE then
    local found = {}
    for i, field in ipairs(fields) do found[i] = redis.call('HGET', key, field) end
    return found
  end
  if #fields <= 4000 then return redis.call('HMGET', key, unpack(fields)) end
  local found, n = {}, 0
  for i = 1, #fields, 4000 do
    local values = redis.call('HMGET', key, unpack(fields, i, math.min(i + 3999, #fields)))
    for k = 1, #values do
      n = n + 1
      found[n] = values[k]
    end
  end
  return found
end

-- The counters of a queue, read once and written back by `save`. They are stored together (COUNTERS in states.lua), with
-- `special`: 1 if the queue is paused, closed or fair, or has limits or a throttle; an enqueue reads nothing else then.
-- It may be 1 although none of them is left, but never 0 while there is one: scripts change `m`, save, then store the new
-- value itself, so that an error between the two leaves no hidden one.
local metas = {}

local function packed_counters(m)
  local special = (m.paused or m.closed or m.limits or m.throttled_until or m.fair) and 1 or 0
  return struct.pack(COUNTERS, m.generation, m.fresh, m.enqueued, m.head, m.segments, special)
end

local function meta(queue)
  local m = metas[queue]
  if m then return m end
  local v = redis.call('HMGET', queue .. ':meta', 'counters', 'paused', 'closed', 'tail0', 'limits', 'throttled_until',
    'fair', 'ghosts')
  local counters = v[1]
  m = {
    paused = v[2] == '1', closed = v[3] == '1', new = not counters, tails = {[0] = v[4]}, limits = v[5],
    throttled_until = tonumber(v[6] or nil), limited = v[5] or v[6], fair = tonumber(v[7] or nil), ghosts = v[8],
    queue = queue, generation = 0, fresh = 0, enqueued = 0, head = 0, segments = 0, counters = counters,
  }
  if m.limits and #m.limits ~= LIMITS_SIZE then m.limits, m.limited = false, v[6] end    -- wrong size
  if counters and #counters == COUNTERS_SIZE then
    m.generation, m.fresh, m.enqueued, m.head, m.segments = struct.unpack(COUNTERS, counters)
  elseif m.new then
    m.counters = packed_counters(m)
  end
  metas[queue] = m
  return m
end

local function save()
  for queue, m in pairs(metas) do
    local changed, n, counters = {}, 0, packed_counters(m)
    if counters ~= m.counters then
      changed[1], changed[2], n, m.counters = 'counters', counters, 2, counters
    end
    if m.tail_changed then
      for priority, tail in pairs(m.tails) do
        changed[n + 1], changed[n + 2] = 'tail' .. priority, tail or ''
        n = n + 2
      end
    end
    if n > 0 then redis.call('HSET', queue .. ':meta', unpack(changed)) end
  end
end

-- The list to which new jobs of this priority are appended, or nothing.
local function tail_of_ready(queue, m, priority)
  local tail = m.tails[priority]
  if tail == nil then
    tail = redis.call('HGET', queue .. ':meta', 'tail' .. priority)
    m.tails[priority] = tail
  end
  return tail ~= '' and tail
end

local function set_tail(m, priority, tail)
  m.tails[priority], m.tail_changed = tail, true
end

-- A number further ahead of the clock than this was given when the clock was wrong: producers do not carry it to other
-- queues, and a queue without jobs drops it.
local FURTHEST = 5000 * PER_MS

-- The next number of the queue, which is a generation or a place at the tail.
local function count_up(m, floor, offset)
  offset = offset or 0
  local by_time = (now - EPOCH) * PER_MS + offset
  floor = floor or 0
  if floor > by_time + FURTHEST then floor = 0 end
  if m.generation > by_time + FURTHEST and redis.call('EXISTS', m.queue .. ':jobs', m.queue .. ':unique') == 0 then
    m.generation = 0
  end
  m.generation = math.max(m.generation + 1, floor + 1 + offset, by_time)
  return m.generation
end

-- ── ready lists: jobs in the order of their places, in segments that `ready` orders ──
-- A segment is named priority/number/first place, plus "/m" if its jobs were moved there (they were not available at
-- their enqueue); the jobs of other segments are fresh. All other available jobs are in `again`, by place.

local function place_of(record)
  if not record or #record < 8 then return 0 end
  local flags, generation = struct.unpack('>BI7', record)
  if bit.band(flags, LONG) == 0 or #record < 37 then return generation end
  return (struct.unpack('<d', record, 30))
end

local function is_moved(segment)
  return string.sub(segment, -2) == '/m'
end

-- Append jobs, whose records must be stored, to the ready lists. Their places need not be consecutive.
local function push_ready(queue, priority, first_place, ids, moved)
  local m, at, kind = meta(queue), 1, moved and '/m' or ''
  local tail = tail_of_ready(queue, m, priority)
  if tail and is_moved(tail) ~= (moved or false) then tail = false end
  while at <= #ids do
    if not tail then
      m.segments = m.segments + 1
      local first = at == 1 and first_place or place_of(redis.call('HGET', queue .. ':jobs', ids[at]))
      tail = string.format('%d/%d/%.0f%s', priority, m.segments, first, kind)
      redis.call('ZADD', queue .. ':ready', (100 - priority) * BAND + m.segments, tail)
      set_tail(m, priority, tail)
    end
    local n = math.min(SEGMENT, #ids - at + 1)
    local size = redis.call('RPUSH', queue .. ':ready/' .. tail, unpack(ids, at, at + n - 1))
    at = at + n
    if size >= SEGMENT then
      set_tail(m, priority, false)
      tail = nil
    end
  end
end

local function close_segment(queue, name)
  redis.call('ZREM', queue .. ':ready', name)
  local m, priority = meta(queue), tonumber(string.match(name, '^[^/]+'))
  if priority and tail_of_ready(queue, m, priority) == name then set_tail(m, priority, false) end
end

-- The first n segments of this priority.
local function first_segments(queue, priority, n)
  local low = (100 - priority) * BAND
  return redis.call('ZRANGEBYSCORE', queue .. ':ready', string.format('(%.0f', low),
    string.format('(%.0f', low + BAND), 'LIMIT', 0, n)
end

-- As sound.lua, for the keys to which available jobs of one priority are added.
local ask_for_lists
do
  local asked = {}

  function ask_for_lists(queue, priority)
    local key = queue .. ':again/' .. priority
    if asked[key] then return end
    local list = tail_of_ready(queue, meta(queue), priority)
    if list then redis.call('LLEN', queue .. ':ready/' .. list) end
    for _, one in ipairs({key, queue .. ':ready', queue .. ':state/' .. AVAILABLE}) do redis.call('ZCARD', one) end
    asked[key] = true
  end
end

-- ── waking ──

-- The kinds of messages to waiters, which subscriber.py reads: there is work; a job is due soon.
local WORK_MESSAGE, DUE_MESSAGE = 'w', 'd'

local function name_of(queue)
  return string.match(queue, '/([^}]*)}$')
end

-- Wake one waiter of this queue, if there is one. If nobody receives the message, the waiter is gone, and the next one
-- is woken; on a Cluster this is unknown, because a server counts only its own connections. Waiters whose time is over
-- by this clock come last: they have stopped waiting, or the clock has jumped ahead. `key`: of the waiters.
local function wake(queue, key)
  local waiters, others = queue .. (key or ':waiters'), nil
  while true do
    local waiter = redis.call('ZPOPMIN', waiters)
    if not waiter[1] then return end
    redis.call('HDEL', queue .. ':offers', waiter[1])
    local over = tonumber(waiter[2]) <= now
    if over and others == nil then
      others = redis.call('ZCOUNT', waiters, string.format('(%.0f', now), '+inf') > 0
    end
    if not (over and others) then
      local receivers = redis.call('PUBLISH', waiter[1], WORK_MESSAGE .. name_of(queue))
      if receivers > 0 or clustered then return end
    end
  end
end

-- Wake one waiter that would sleep longer than until `due`, because a job is now due before all others.
local function wake_for(queue, due)
  local waiters, after = queue .. ':waiters', string.format('(%.0f', due)
  while true do
    local waiter = redis.call('ZRANGEBYSCORE', waiters, after, '+inf', 'LIMIT', 0, 1)[1]
    if not waiter then return end
    redis.call('ZREM', waiters, waiter)
    if redis.call('PUBLISH', waiter, DUE_MESSAGE .. name_of(queue)) > 0 or clustered then return end
  end
end

local made_ready, made_due = {}, {}    -- queues that got available jobs; queues → earliest new due time
local minted = 0    -- the highest generation that this script has given, or knows from its caller
local members_processed = 0    -- members of batches that this script has processed: it stops at about 2000

local function first_due(queue)
  local first = redis.call('ZRANGE', queue .. ':due', 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]), first[1]
end

-- The functions of limits.lua, loaded at the first call.
local loaded_limits
local function limiting()
  if loaded_limits then return loaded_limits end
  -- include: limits
  loaded_limits = {
    rules_of = rules_of, room_of = room_of, count_start = count_start, store_starts = store_starts,
    count_new = count_new, throttle = throttle, excess_of = excess_of, RULES = RULES,
  }
  return loaded_limits
end

-- Whether a worker that is woken now would get an available job, or learn when it will.
local function can_serve(queue)
  local m = meta(queue)
  if m.paused then return false end
  if not m.limited then return true end
  local room, opens_at = limiting().room_of(queue, m)
  return room > 0 or opens_at ~= nil
end

-- Wake a waiter of a queue with limits that may have room again; for parked jobs, a waiter that knows their task. This is
-- after the writes of a script, so it does not fail the call.
local wake_for_room
do
  local function wake_one(queue)
    if redis.call('EXISTS', queue .. ':ready') == 1 then
      if can_serve(queue) then wake(queue) end
    elseif redis.call('EXISTS', queue .. ':waiters/parked') == 1 and redis.call('EXISTS', queue .. ':parked') == 1
      and can_serve(queue) then
      wake(queue, ':waiters/parked')
    end
  end

  function wake_for_room(queue) pcall(wake_one, queue) end
end

-- Records that this script has set aside: 3 entries each, queue, id, cause. Scripts that return them take them;
-- otherwise `finish` stores them in `asides` until the next prune.
local set_asides = {}

local function note_set_aside(queue, id, cause)
  set_asides[#set_asides + 1], set_asides[#set_asides + 2], set_asides[#set_asides + 3] = queue, id, cause
end

local function take_set_asides(into)
  for _, fact in ipairs(set_asides) do into[#into + 1] = fact end
  set_asides = {}
  return into
end

local function keep_set_asides()
  for i = 1, #set_asides, 3 do
    local queue, id, cause = unpack(set_asides, i, i + 2)
    redis.call('RPUSH', queue .. ':asides', struct.pack('<I2c0', #id, id) .. cause)
    redis.call('LTRIM', queue .. ':asides', -1000, -1)
  end
end

-- Add n to a number in a hash; a value that is not a number is replaced. A key that is no hash counts nothing, and fails no
-- call, because what is counted has been done.
local function count_on(key, field, n)
  local counted = redis.pcall('HINCRBY', key, field, n)
  if type(counted) == 'number' then return counted end
  redis.pcall('HSET', key, field, n)
  return n
end

-- Note the end of a job that is a node of a flow, or with the state AVAILABLE that it runs again, for the flow's home:
-- `ends` maps a number, which grows, to the state, the stored id, the node (see script_arguments.py), "r" and the result. Scripts
-- that return the names of new entries take them from here. The usual end leaves no entry: see `counted`. The caller stores
-- a job that runs again, whose `flow` changes.
local new_ends = {}

local note_flow
do
  -- A node, as flow_session.py writes it, has its state in byte 1, pending in 3 to 6, its only successor in 11 to 14 (NO_ONE:
  -- its end has other consequences, too), and from 23 on stored id and queue of its job, each after its size.
  local NO_ONE, WAITS, ACTIVE, DONE = 4294967295, 0, 1, 2
  local RAN_AGAIN = 2147483648    -- added to the number of the node in a job that runs again: its next end is counted
                                  -- after the entries that `ends` may have of it
  local flows = {}    -- by queue and flow: its key, `q`, and its waiting nodes; nothing else changes them during a script

  -- The flow of a node, if scripts may count ends in it: it is on this server, and runs (`s`).
  local function flow_of(queue, of)
    local found = flows[of]
    if found == nil or found and found.queue ~= queue then
      local name, home, at = name_of(queue), struct.unpack('<Bc0', of)
      found = false
      if not clustered or home == name then
        local key = string.sub(queue, 1, -2 - #name) .. home .. '}:flow/' .. string.sub(of, at)
        local open = redis.call('HMGET', key, 's', 'q')
        found = open[1] == '1' and {key = key, queue = queue, q = tonumber(open[2]) or 0, name = string.char(#name) .. name}
      end
      flows[of] = found
    end
    return found
  end

  -- Count a completed job in its flow: its node has ended, and one node less is pending for its successor. True if that
  -- is all, because its successor waits for another node, too. `q` counts such ends, which `head` does not.
  local function counted(queue, id, job)
    local node, flow = struct.unpack('<I4', job.flow), flow_of(queue, string.sub(job.flow, 5))
    if node >= RAN_AGAIN or not flow then return false end
    local text = redis.call('HGET', flow.key, 'n' .. node)
    if not text or string.byte(text) ~= ACTIVE then return false end
    if string.sub(text, 23, 23 + #id + #flow.name) ~= string.char(#id) .. id .. flow.name then return false end
    local successor = struct.unpack('<I4', text, 11)
    if successor == NO_ONE then return false end
    local after = flow[successor] or redis.call('HGET', flow.key, 'n' .. successor)
    local pending = struct.unpack('<i4', after, 3)
    if string.byte(after) ~= WAITS or pending < 2 then return false end
    after = string.sub(after, 1, 2) .. struct.pack('<i4', pending - 1) .. string.sub(after, 7)
    text = string.char(DONE) .. string.sub(text, 2)
    if job.result then
      redis.call('HSET', flow.key, 'q', flow.q + 1, 'n' .. node, text, 'n' .. successor, after, 'r' .. node, job.result)
    else
      redis.call('HSET', flow.key, 'q', flow.q + 1, 'n' .. node, text, 'n' .. successor, after)
    end
    flow.q, flow[successor] = flow.q + 1, after
    return true
  end

  function note_flow(queue, id, job, state)
    if state == COMPLETED then
      local ok, done = pcall(counted, queue, id, job)    -- an error: the key of the flow holds something else
      if ok and done then return end
    end
    local stamp = string.format('%.0f', count_up(meta(queue)))
    redis.call('HSET', queue .. ':ends', stamp,
      struct.pack('<BBc0I2c0', state, #id, id, #job.flow, job.flow) .. (job.result and 'r' .. job.result or ''))
    new_ends[#new_ends + 1] = stamp .. '/' .. name_of(queue)
    if state == AVAILABLE then
      job.flow = struct.pack('<I4', struct.unpack('<I4', job.flow) % RAN_AGAIN + RAN_AGAIN) .. string.sub(job.flow, 5)
    end
  end
end

-- The last step of every script that may have made jobs available or due. Its writes are done: nothing here fails the call
-- any more, if the key of the waiters or of the reports holds something else.
local function finish()
  save()
  if set_asides[1] then pcall(keep_set_asides) end
  for queue in pairs(made_ready) do
    pcall(function() if can_serve(queue) then wake(queue) end end)
  end
  for queue, due in pairs(made_due) do
    pcall(function() if first_due(queue) == due then wake_for(queue, due) end end)
  end
end

-- ── what scripts ask of a queue ──

-- The number of jobs of a queue in one state.
local function jobs_in(queue, state)
  if state == RUNNING then return redis.call('HLEN', queue .. ':held') end
  local n = redis.call('ZCARD', queue .. ':state/' .. state)
  if state == AVAILABLE then n = n + meta(queue).fresh end
  if state == COLLECTING then n = n + redis.call('ZCARD', queue .. IN_BATCH) end
  return n
end

-- Why this queue does not take n new jobs that are stored together: CLOSED, or FULL and the refusal (`count_new` in
-- limits.lua). Nothing if it takes them.
local function not_admitted(queue, n)
  if meta(queue).closed then return CLOSED end
  local refusal = meta(queue).limited and limiting().count_new(queue, meta(queue), n)
  if refusal then return FULL, refusal end
end

-- The daily counts: fields "day/processed" and "day/failed"; day: the number of days since 1970.
local function old_days(queue)
  local oldest, found = math.floor(now / 86400000) - 90, {}
  for _, field in ipairs(redis.call('HKEYS', queue .. ':days')) do
    if (tonumber(string.match(field, '^%-?%d+')) or 0) <= oldest then found[#found + 1] = field end
  end
  return found
end
