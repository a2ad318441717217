-- Enqueue: store new jobs.
-- KEYS: the queues.  ARGV: clock, floor (the highest generation that the caller has seen), places ('', or 2
-- bytes per job: its position in a call that spans several servers), number of profiles, the profiles (digest,
-- profile), then per job: id, form, tail.
-- form: number of the queue, priority + 100, and unless the job is plain: delay, run_at, expires_in, expires_at
-- (doubles), and its unique, partition, fair share and batch rules (see record.lua), each with its size.
-- tail: flags, then the tail of the record.
-- Returns {the highest generation, numbers of the queues that were new, one status code per job (NEW, EXISTS,
-- CLOSED, DUPLICATE, REPLACED or FULL of states.lua), then for each DUPLICATE and REPLACED the id of the holder
-- of the unique key, and for each FULL the refusal (`count_new` in limits.lua)}; or for a plain job that was stored
-- without more to do, its generation.
-- include: clock states dispatch

local EXPIRING_FORM = 44    -- the size of a form with its times, and no keys

-- When a job expires that has no other option and is available now; nothing for any other job.
local function expiry_of(form)
  if #form ~= EXPIRING_FORM then return nil end
  local delay, run_at, expires_in, expires_at = struct.unpack('<dddd', form, 3)
  if delay == 0 and run_at == NONE and expires_in ~= NONE and expires_at == NONE then return now + expires_in end
end

-- As `put` and `write` in places.lua and record.lua have a job that can expire and is available now.
local function expiring_record(generation, priority, flags, tail, expires)
  return struct.pack('>BI7B', AVAILABLE + LONG + flags, generation, priority + 128)
    .. struct.pack('<I4ddddddI4I4I2', 62, now, now, generation, expires, NONE, NONE, 0, 0, 0) .. tail
end

-- Add jobs to their indexes. Returns false, and has added none, if one of the keys holds something else.
local function store_expiring(queue, priority, places, orders)
  local keys = {queue .. ':expiring', queue .. ':state/' .. AVAILABLE, queue .. ':again/' .. priority, queue .. ':ready'}
  local added = {orders, places, places, {(100 - priority) * BAND, priority .. '/again'}}
  for i, key in ipairs(keys) do
    if type(redis.pcall('ZADD', key, unpack(added[i]))) ~= 'number' then
      for k = 1, i - 1 do
        for m = 2, #added[k], 2 do redis.call('ZREM', keys[k], added[k][m]) end
      end
      return false
    end
  end
  return true
end

-- Append one job, plain or one that expires, to its queue, or dispatch a plain one. Returns its generation, or nothing if
-- there is more to do: the queue is new or special (see queue.lua), or has a waiter without an offer, its list is full,
-- or the clock was set back.
local function append(queue, digest, profile, id, form, tail, expires)
  local priority = string.byte(form, 2)
  local tail_field = priority == 100 and 'tail0' or 'tail' .. priority - 100
  local stored = redis.call('HMGET', queue .. ':meta', 'counters', tail_field)
  local counters, list = stored[1], stored[2]
  if not counters or #counters ~= COUNTERS_SIZE then return nil end
  local last, fresh, enqueued, head, segments, special = struct.unpack(COUNTERS, counters)
  local by_time = (now - EPOCH) * PER_MS
  local generation = math.max(last + 1, ARGV[2] + 1, by_time)
  if special ~= 0 or generation >= by_time + PER_MS then return nil end
  if redis.call('HGET', queue .. ':profiles', digest) ~= profile then return nil end
  local waited_for = redis.call('EXISTS', queue .. ':waiters') == 1
  if expires then
    if waited_for or redis.call('HEXISTS', queue .. ':jobs', id) == 1 then return nil end
    local order = struct.pack('>I7', generation) .. id
    if not store_expiring(queue, priority - 100, {generation, id}, {expires, order}) then return nil end
    redis.call('HSET', queue .. ':jobs', id,
      expiring_record(generation, priority - 100, string.byte(tail), string.sub(tail, 2), expires))
  else
    local record = struct.pack('>BI7B', AVAILABLE + FRESH + string.byte(tail), generation, priority + 28)
      .. string.sub(tail, 2)
    local channel, offer
    if waited_for then
      channel, offer = offer_for(queue, record)
      if not offer then return nil end
    elseif not list or list == '' or string.sub(list, -2) == '/m' then
      return nil
    end
    if redis.call('HSETNX', queue .. ':jobs', id, record) == 0 then return nil end
    local size = not offer and redis.pcall('RPUSH', queue .. ':ready/' .. list, id)
    if not (offer and dispatch(queue, id, record, channel, offer) or type(size) == 'number') then
      redis.call('HDEL', queue .. ':jobs', id)    -- one of these keys holds something else
      return nil
    end
    if size then
      fresh = fresh + 1
      if size >= SEGMENT then redis.call('HSET', queue .. ':meta', tail_field, '') end
    end
  end
  redis.call('HSET', queue .. ':meta', 'counters',
    struct.pack(COUNTERS, generation, fresh, enqueued + 1, head, segments, 0))
  return generation
end

-- Before the other parts, whose functions such a job would pay for: half of the server's time for a call.
if #ARGV == 9 and ARGV[3] == '' then
  local expires = expiry_of(ARGV[8])
  local generation = (expires or #ARGV[8] == 2) and append(KEYS[1], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], expires)
  if generation then return generation end
end

-- include: queue profiles
local floor, places, profiles = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local first = 5 + 2 * profiles
local inline_profile = profile_keeper(5, profiles)

local asked, taken, count, fresh, records, expiring = {}, {}, {}, {}, {}, {}
for q = 1, #KEYS do
  asked[q], taken[q], count[q], fresh[q], records[q], expiring[q] = {}, {}, 0, {}, {}, {}
end
for i = first, #ARGV, 3 do
  local of_queue = asked[string.byte(ARGV[i + 1])]
  of_queue[#of_queue + 1] = ARGV[i]
end
for q, queue in ipairs(KEYS) do
  if #asked[q] > 0 then
    local found = get_many(queue .. ':jobs', asked[q])
    for i, id in ipairs(asked[q]) do
      if found[i] then taken[q][id] = true end
    end
  end
end

local slow
local function slow_path()
  if slow then return slow end
  -- include: record partitions places insert
  slow = {
    enqueue_status = enqueue_status, store_new = store_new, replace_holder = replace_holder,
    ask_for_keys_of = ask_for_keys_of,
  }
  return slow
end

-- As sound.lua, which asks for more than jobs need that have no shared keys: before the first write, ask for the keys that
-- the jobs of this call need.
do
  local sent, all_asked = {}, false
  local function ask_for_all()
    if all_asked then return end
    -- include: sound
    all_asked = true
  end

  for i = 5, first - 1, 2 do sent[ARGV[i]] = ARGV[i + 1] end

  local function ask_for(form, tail)
    local q, priority = string.byte(form, 1, 2)
    local queue = KEYS[q]
    ask_for_lists(queue, priority - 100)
    if #form > EXPIRING_FORM or meta(queue).fair then
      ask_for_all()
      slow_path().ask_for_keys_of(queue, form, sent[string.sub(tail, 2, 5)])
    elseif #form > 2 then
      for _, name in ipairs({':expiring', ':due', ':state/' .. SCHEDULED}) do redis.call('ZCARD', queue .. name) end
    end
  end

  local asked_forms = {}
  for i = first, #ARGV, 3 do
    local form = ARGV[i + 1]
    if not asked_forms[form] then
      ask_for(form, ARGV[i + 2])
      asked_forms[form] = #form <= EXPIRING_FORM
    end
  end
end

-- Collect a plain job that is available now; all of them are stored and pushed to the ready lists together.
local function keep_fresh(q, id, priority, generation, flags, tail)
  local list, of_queue = fresh[q][priority], records[q]
  if not list then
    list = {first = generation}
    fresh[q][priority] = list
  end
  list[#list + 1] = id
  of_queue[#of_queue + 1] = id
  of_queue[#of_queue + 1] =
    struct.pack('>BI7B', AVAILABLE + FRESH + flags, generation, priority + 128) .. tail
end

-- Collect a job that can expire and is available now; all of them are stored together.
local function keep_expiring(q, id, priority, generation, flags, tail, expires)
  local jobs = expiring[q][priority]
  if not jobs then
    jobs = {places = {}, orders = {}, records = {}}
    expiring[q][priority] = jobs
  end
  local places, orders, stored, n = jobs.places, jobs.orders, jobs.records, #jobs.places
  places[n + 1], places[n + 2] = generation, id
  orders[n + 1], orders[n + 2] = expires, struct.pack('>I7', generation) .. id
  stored[n + 1], stored[n + 2] = id, expiring_record(generation, priority, flags, tail, expires)
end

local statuses, holders = {}, {}
for i = first, #ARGV, 3 do
  local id, form, tail = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local q, priority = string.byte(form, 1, 2)
  local queue = KEYS[q]
  local status, has
  local expires = expiry_of(form)
  if taken[q][id] then
    status = EXISTS
  elseif #form == 2 or expires then
    local m = meta(queue)
    has = m.limited and not m.closed and limiting().count_new(queue, m) or nil
    status = m.closed and CLOSED or has and FULL or NEW
  else
    status, has = slow_path().enqueue_status(queue, form, false)
    if status == REPLACED then slow.replace_holder(queue, has, form, tail) end
  end
  if status == NEW then
    local flags, stored = tail_of(tail, inline_profile(queue, string.sub(tail, 2, 5)))
    local generation
    if places == '' then
      generation = count_up(meta(queue), floor)
      floor = generation
    else
      generation = count_up(meta(queue), floor, struct.unpack('<I2', places, 2 * (i - first) / 3 + 1))
    end
    taken[q][id] = true
    count[q] = count[q] + 1
    if #form == 2 and ms_of(generation) == now and not meta(queue).fair then
      keep_fresh(q, id, priority - 100, generation, flags, stored)
    elseif expires and not meta(queue).fair then
      keep_expiring(q, id, priority - 100, generation, flags, stored, expires)
    else
      slow_path().store_new(queue, id, form, generation, flags, stored)
      if places == '' then floor = math.max(floor, minted) end
    end
  end
  statuses[#statuses + 1] = status
  holders[#holders + 1] = has
end

-- Dispatch the only job that this call brings to the queue.
local function dispatch_directly(queue, m, id, record)
  if m.paused or m.limited then return false end
  local channel, offer = offer_for(queue, record)
  if not offer then return false end
  redis.call('HSET', queue .. ':jobs', id, record)
  return dispatch(queue, id, record, channel, offer)
end

local new = {}
for q, queue in ipairs(KEYS) do
  local m = meta(queue)
  if count[q] > 0 then
    if m.new then new[#new + 1] = q end
    m.enqueued = m.enqueued + count[q]
    local dispatched = count[q] == 1 and #records[q] == 2 and dispatch_directly(queue, m, records[q][1], records[q][2])
    if not dispatched then in_steps('HSET', queue .. ':jobs', records[q]) end
    for priority, list in pairs(dispatched and {} or fresh[q]) do
      push_ready(queue, priority, list.first, list)
      m.fresh = m.fresh + #list
      made_ready[queue] = true
    end
    for priority, jobs in pairs(expiring[q]) do
      store_expiring(queue, priority, jobs.places, jobs.orders)
      in_steps('HSET', queue .. ':jobs', jobs.records)
      made_ready[queue] = true
    end
  end
end
finish()
for _, queue in ipairs(KEYS) do floor = math.max(floor, meta(queue).generation) end
return {string.format('%.0f', floor), new, table.concat(statuses), unpack(holders)}
