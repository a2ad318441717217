-- Promote: make due jobs available, earliest first over all these queues.
-- KEYS: the queues.  ARGV: clock, limit, floor (as in enqueue).  Returns {moved, next due ('' if none), now, how much
-- of the limit was used, 1 if the call should be repeated for the rest of the limit (else 0), the highest generation,
-- then the records that were set aside: 3 entries each}. A partition that is due is among the jobs, and counts as one.
-- include: size_check clock states dispatch queue record partitions places
local limit, moved, used, skipped = tonumber(ARGV[2]), 0, 0, false
minted = tonumber(ARGV[3])

-- Decide how many due jobs to take from each queue: the earliest over all queues, at most the limit.
local quota, due_queues = {}, 0
for q, queue in ipairs(KEYS) do
  quota[q] = math.min(limit, redis.call('ZCOUNT', queue .. ':due', '-inf', now))
  if quota[q] > 0 then due_queues = due_queues + 1 end
end
if due_queues > 1 then
  local all = {}
  for q, queue in ipairs(KEYS) do
    local found = quota[q] > 0 and redis.call('ZRANGE', queue .. ':due', 0, quota[q] - 1, 'WITHSCORES') or {}
    for i = 1, #found, 2 do all[#all + 1] = {tonumber(found[i + 1]), found[i], q} end
    quota[q] = 0
  end
  table.sort(all, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  for i = 1, math.min(limit, #all) do
    local q = all[i][3]
    quota[q] = quota[q] + 1
  end
end

local sub, byte, char, unpacked, packed = string.sub, string.byte, string.char, struct.unpack, struct.pack

-- Promote one job that is not plain; returns how many were promoted (0 or 1).
local function promote_single(queue, id, record, member)
  local job, gone = readable(queue, id, record)
  if gone or order(job, id) ~= member or (job.state ~= SCHEDULED and job.state ~= RETRYABLE and job.state ~= SUSPENDED) then
    redis.call('ZREM', queue .. ':due', member)
    return 0
  end
  take(queue, id, job)
  if job.expires and job.expires <= now then
    end_queued(queue, id, job, EXPIRED)
    return 0
  end
  put_available(queue, id, job)
  return 1
end

-- The first `count` members of `due`, with their ids and records. Nothing if one of them is a batch or in one.
local function read_due(queue, count)
  local members, ids = redis.call('ZRANGE', queue .. ':due', 0, count - 1), {}
  for i = 1, count do
    if byte(members[i]) == 255 then return nil end
    -- the key of a partition is not an id
    ids[i] = sub(members[i], 1, 7) == PARTITION_IN_DUE and '' or sub(members[i], 8)
  end
  local records = get_many(queue .. ':jobs', ids)
  for i = 1, count do
    -- the lowest bit of the second byte: it has a batch key
    if records[i] and (byte(records[i], 71) or 0) % 2 == 1 then return nil end
  end
  return {members, ids, records}
end

-- Lease a plain job to a waiting worker instead of making it ready; returns whether there is one. Nothing of the job is
-- to be reset by its start, and no other job depends on it: as `lease_jobs` in fetch.lua has it.
local DISPATCHED_PARTS = 9    -- bits of errors and a checkpoint, which stay

local function dispatched(queue, m, id, record)
  local expires, has = unpacked('<d', record, 38), unpacked('<I2', record, 70)
  if m.paused or m.limited or expires ~= NONE or bit.bor(has, DISPATCHED_PARTS) ~= DISPATCHED_PARTS then return false end
  local channel, offer = offer_for(queue, record)
  if not offer then return false end
  redis.call('HSET', queue .. ':jobs', id, record)
  return dispatch(queue, id, record, channel, offer)
end

-- Promote jobs: write each plain job's record with its new state and place, at the same offsets as before.
local function promote(queue, count, found)
  local members, ids, records, m = found[1], found[2], found[3], meta(queue)
  local left, written, by_place, by_age, n = {[SCHEDULED] = {}, [RETRYABLE] = {}}, {}, {}, {}, 0
  local plain, with_others = {}, 0    -- members of jobs promoted here; number of jobs promoted one by one
  -- of several, the scheduler may choose another first: by priority, or by the waiter's order of queues
  local offered = count == 1 and due_queues == 1 and redis.call('EXISTS', queue .. ':offers') == 1
  for i = 1, count do
    local id, record = ids[i], records[i]
    local partition = sub(members[i], 1, 7) == PARTITION_IN_DUE
    local flags, generation, priority, state, expires
    if record and #record >= 75 then
      flags, generation, priority = unpacked('>BI7B', record)
      state, expires = flags % 16 - LONG, unpacked('<d', record, 38)
    end
    if partition then
      with_others = with_others + advance(queue, sub(members[i], 8))
    elseif not record then
      forget_traces(queue, id, members[i])
    elseif not left[state or -1] or flags >= FRESH or sub(members[i], 1, 7) ~= sub(record, 2, 8)
      or (expires ~= NONE and not (expires > now)) or m.fair or bit.band(unpacked('<I2', record, 70), PARTITION) ~= 0 then
      with_others = with_others + promote_single(queue, id, record, members[i])
    else
      plain[#plain + 1] = members[i]
      local place, places, gone = count_up(m), by_place[priority], left[state]
      gone[#gone + 1] = id
      local moved_record = char(flags - state + AVAILABLE + MOVED) .. sub(record, 2, 29) .. packed('<d', place)
        .. sub(record, 38)
      if offered and dispatched(queue, m, id, moved_record) then
        with_others = with_others + 1
      else
        if not places then
          places = {first = place, n = 0}
          by_place[priority] = places
        end
        places.n = places.n + 1
        places[places.n] = id
        by_age[n + 1], by_age[n + 2] = generation, id
        written[n + 1], written[n + 2] = id, moved_record
        n = n + 2
      end
    end
  end
  if n > 0 then    -- as sound.lua
    redis.call('ZCARD', queue .. ':ready')
    redis.call('ZCARD', queue .. ':state/' .. AVAILABLE)
  end
  for priority in pairs(by_place) do
    local list = tail_of_ready(queue, m, priority - 128)
    if list then redis.call('LLEN', queue .. ':ready/' .. list) end
  end
  if #plain == count then
    redis.call('ZREMRANGEBYRANK', queue .. ':due', 0, count - 1)
  else
    in_steps('ZREM', queue .. ':due', plain)
  end
  for state, of_state in pairs(left) do pcall(in_steps, 'ZREM', queue .. ':state/' .. state, of_state) end
  in_steps('ZADD', queue .. ':state/' .. AVAILABLE, by_age)
  in_steps('HSET', queue .. ':jobs', written)
  for priority, places in pairs(by_place) do
    push_ready(queue, priority - 128, places.first, places, true)
  end
  if n > 0 then made_ready[queue] = true end
  return n / 2 + with_others
end

local found = {}
for q, queue in ipairs(KEYS) do
  if quota[q] > 0 then
    found[q] = read_due(queue, quota[q])
    if not found[q] then
      found = nil
      break
    end
  end
end
if found then
  for q, queue in ipairs(KEYS) do
    if quota[q] > 0 then moved, used = moved + promote(queue, quota[q], found[q]), used + quota[q] end
  end
else
  local function one_by_one()
    -- include: promote_batches
    return promote_with_batches(limit)
  end
  moved, used, skipped = one_by_one()
end
local answered_set_asides = take_set_asides({})
finish()
local due = ''
for _, queue in ipairs(KEYS) do
  local first = first_due(queue)
  if first and (due == '' or first < due) then due = first end
end
return {moved, due == '' and '' or string.format('%.0f', due), string.format('%.0f', now), used, skipped and 1 or 0,
  string.format('%.0f', minted), unpack(answered_set_asides)}
