-- Enqueue: store new jobs.
-- KEYS: the queues.  ARGV: clock, floor (the highest generation that the caller has seen), places ('', or 2
-- bytes per job: its position in a call that spans several servers), number of profiles, the profiles (digest,
-- profile), then per job: id, form, tail.
-- form: number of the queue, priority + 100, and unless the job is plain: delay, run_at, expires_in, expires_at
-- (doubles), and its unique, partition, fair share and batch rules (see record.lua), each with its size.
-- tail: flags, then the tail of the record.
-- Returns {the highest generation, numbers of the queues that were new, one status code per job (NEW, EXISTS,
-- CLOSED, DUPLICATE, REPLACED or FULL of status_codes.lua), then for each DUPLICATE and REPLACED the id of the holder
-- of the unique key, and for each FULL the answer of `full` (see limits.lua)}; or for a plain job that was stored
-- without more to do, its generation.
-- include: clock states status_codes dispatch

-- Append one plain job to the ready list of its queue, or dispatch it. Returns its generation, or nothing if there is
-- more to do: the queue is new or special (see queue.lua), or has a waiter without an offer, its list is full, or the
-- clock was set back.
local function append(queue, digest, profile, id, form, tail)
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
  local record = struct.pack('>BI7B', AVAILABLE + FRESH + string.byte(tail), generation, priority + 28)
    .. string.sub(tail, 2)
  local channel, offer
  if redis.call('EXISTS', queue .. ':waiters') == 1 then
    channel, offer = offer_for(queue, record)
    if not offer then return nil end
  elseif not list or list == '' or string.sub(list, -2) == '/m' then
    return nil
  end
  if redis.call('HSETNX', queue .. ':jobs', id, record) == 0 then return nil end
  if offer then
    dispatch(queue, id, record, channel, offer)
  else
    fresh = fresh + 1
    if redis.call('RPUSH', queue .. ':ready/' .. list, id) >= SEGMENT then
      redis.call('HSET', queue .. ':meta', tail_field, '')
    end
  end
  redis.call('HSET', queue .. ':meta', 'counters',
    struct.pack(COUNTERS, generation, fresh, enqueued + 1, head, segments, 0))
  return generation
end

-- Before the other parts, whose functions a plain job would pay for: half of the server's time for a call.
if #ARGV == 9 and #ARGV[8] == 2 and ARGV[3] == '' then
  local generation = append(KEYS[1], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9])
  if generation then return generation end
end

-- include: queue profiles
local floor, places, profiles = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local first = 5 + 2 * profiles
local inline_profile = profile_keeper(5, profiles)

local asked, taken, count, fresh, records = {}, {}, {}, {}, {}
for q = 1, #KEYS do
  asked[q], taken[q], count[q], fresh[q], records[q] = {}, {}, 0, {}, {}
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
  -- include: record partitions places replacing insert
  slow = {enqueue_status = enqueue_status, store_new = store_new, replace_holder = replace_holder}
  return slow
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

local statuses, holders = {}, {}
for i = first, #ARGV, 3 do
  local id, form, tail = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local q, priority = string.byte(form, 1, 2)
  local queue = KEYS[q]
  local status, has
  if taken[q][id] then
    status = EXISTS
  elseif #form == 2 then
    local m = meta(queue)
    has = m.limited and not m.closed and limiting().full(queue, m) or nil
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
  dispatch(queue, id, record, channel, offer)
  return true
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
  end
end
finish()
for _, queue in ipairs(KEYS) do floor = math.max(floor, meta(queue).generation) end
return {string.format('%.0f', floor), new, table.concat(statuses), unpack(holders)}
