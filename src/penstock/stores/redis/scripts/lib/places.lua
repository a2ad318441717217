-- The orders that a queue keeps besides its ready lists, and how a job enters and leaves each.

local function first_place_of(name)
  return tonumber(string.match(name, '^[^/]+/[^/]+/([^/]+)'))
end

-- The first n segments of this priority.
local function first_segments(queue, priority, n)
  local low = (100 - priority) * BAND
  return redis.call('ZRANGEBYSCORE', queue .. ':ready', string.format('(%.0f', low),
    string.format('(%.0f', low + BAND), 'LIMIT', 0, n)
end

-- The ranks in `ready` of the first and the last of them; the last is before the first where there is none.
local function segment_ranks(queue, priority)
  local ready, low = queue .. ':ready', (100 - priority) * BAND
  return redis.call('ZCOUNT', ready, '-inf', string.format('%.0f', low)),
    redis.call('ZCOUNT', ready, '-inf', string.format('(%.0f', low + BAND)) - 1
end

-- The rank in `ready` of the last segment of this priority that begins at or before this place, or nil.
local function segment_rank(queue, priority, place)
  local from, to = segment_ranks(queue, priority)
  local found
  while from <= to do
    local middle = math.floor((from + to) / 2)
    local name = redis.call('ZRANGE', queue .. ':ready', middle, middle)[1]
    if first_place_of(name) <= place then
      found, from = middle, middle + 1
    else
      to = middle - 1
    end
  end
  return found
end

local function take_ready(queue, id, job)
  local rank = segment_rank(queue, job.priority, job.place)
  local name = redis.call('ZRANGE', queue .. ':ready', rank, rank)[1]
  local list = queue .. ':ready/' .. name
  redis.call('LREM', list, 1, id)
  if redis.call('EXISTS', list) == 0 then close_segment(queue, name) end
  if job.fresh then
    local m = meta(queue)
    m.fresh = m.fresh - 1
  end
end

-- ── again: available, and in no list; by place within a priority ──

local function put_again(queue, id, job)
  redis.call('ZADD', queue .. ':again/' .. job.priority, job.place, id)
  redis.call('ZADD', queue .. ':ready', (100 - job.priority) * BAND, job.priority .. '/again')
end

local function close_again(queue, priority)
  if redis.call('EXISTS', queue .. ':again/' .. priority) == 0 then
    redis.call('ZREM', queue .. ':ready', priority .. '/again')
  end
end

local function take_again(queue, id, job)
  redis.call('ZREM', queue .. ':again/' .. job.priority, id)
  close_again(queue, job.priority)
end

-- ── parked: by task, then as if available ──

local function parked_order(job, id)
  return struct.pack('>BI7', 100 - job.priority, job.place + 4503599627370496) .. id
end

local function put_parked(queue, id, job)
  local _, task = profile(queue, job)
  redis.call('ZADD', queue .. ':parked/' .. task, 0, parked_order(job, id))
  redis.call('HINCRBY', queue .. ':parked', task, 1)
end

local function take_parked(queue, id, job)
  local _, task = profile(queue, job)
  redis.call('ZREM', queue .. ':parked/' .. task, parked_order(job, id))
  if redis.call('HINCRBY', queue .. ':parked', task, -1) == 0 then
    redis.call('HDEL', queue .. ':parked', task)
  end
end

-- ── unique keys: key → generation of its holder, until when, and the holder's id ──

local function holder(queue, key)
  local held = redis.call('HGET', queue .. ':unique', key)
  if not held then return nil end
  local _, till = struct.unpack('>I7d', held)
  if till == NONE or till > now then return string.sub(held, 16) end
end

local function hold_key(queue, id, job)
  local period = struct.unpack('<d', job.unique)
  local till = period == NONE and NONE or job.enqueued + period
  if till == NONE or till > now then
    local held = struct.pack('>I7d', job.generation, till) .. id
    redis.call('HSET', queue .. ':unique', string.sub(job.unique, 9), held)
  end
end

local function free_key(queue, job)
  if not job.unique then return end
  local key = string.sub(job.unique, 9)
  local held = redis.call('HGET', queue .. ':unique', key)
  if held and struct.unpack('>I7', held) == job.generation then
    redis.call('HDEL', queue .. ':unique', key)
  end
end

-- Tell those who wait for this job's end; the record goes with the message and saves them a question.
local function tell_ended(queue, id, record)
  local watchers = queue .. ':watchers'
  local channels = redis.call('HGET', watchers, id)
  if not channels then return end
  redis.call('HDEL', watchers, id)
  local name = name_of(queue)
  local said = 'e' .. struct.pack('>BB', #name, #id) .. name .. id .. (#record <= 65536 and record or 'l')
  for channel in string.gmatch(channels, '[^ ]+') do redis.call('PUBLISH', channel, said) end
end

-- ── a job and all its orders ──

local function ended_state(state)
  return state == COMPLETED or state == CANCELLED or state == DEAD
end

local groups    -- what is to be done about groups and batches, at its first call

local function put(queue, id, job, over)
  local state = job.state
  job.fresh, job.moved = false, false
  if state == GROUPED then return groups().put(queue, id, job) end
  if state == AVAILABLE then
    put_again(queue, id, job)
    made_ready[queue] = true
  elseif state == SCHEDULED or state == RETRYABLE then
    redis.call('ZADD', queue .. ':due', job.run, order(job, id))
    made_due[queue] = math.min(made_due[queue] or job.run, job.run)
  elseif state == PARKED then
    put_parked(queue, id, job)
  else
    redis.call('ZADD', queue .. ':ended/' .. state, job.ended, order(job, id))
    redis.call('ZADD', queue .. ':over', over, order(job, id))
    free_key(queue, job)
  end
  redis.call('ZADD', queue .. ':state/' .. state, job.generation, id)
  local record = write(job)
  redis.call('HSET', queue .. ':jobs', id, record)
  if ended_state(state) then
    tell_ended(queue, id, record)
    if job.group and groups().is_batch(job) then groups().end_members(queue, id, job, over) end
  elseif job.expires then
    redis.call('ZADD', queue .. ':expiring', job.expires, order(job, id))
  end
end

local function take(queue, id, job)
  local state = job.state
  if state == GROUPED then return groups().take(queue, id, job) end
  if state == AVAILABLE then
    if job.fresh or job.moved then take_ready(queue, id, job) else take_again(queue, id, job) end
  elseif state == SCHEDULED or state == RETRYABLE then
    redis.call('ZREM', queue .. ':due', order(job, id))
  elseif state == PARKED then
    take_parked(queue, id, job)
  else
    redis.call('ZREM', queue .. ':ended/' .. state, order(job, id))
    redis.call('ZREM', queue .. ':over', order(job, id))
  end
  if not job.fresh then redis.call('ZREM', queue .. ':state/' .. state, id) end
  if job.expires then redis.call('ZREM', queue .. ':expiring', order(job, id)) end
  job.fresh, job.moved = false, false
end

-- What has been taken does not come back; the members of a batch go with it.
local function remove(queue, id, job)
  if job.group and groups().is_batch(job) then groups().remove_members(queue, id, job) end
  free_key(queue, job)
  redis.call('HDEL', queue .. ':jobs', id)
  tell_ended(queue, id, '')
end

-- A job that was taken, and was not running, is cancelled.
local function end_queued(queue, id, job, reason)
  job.state, job.ended, job.reason = CANCELLED, now, reason
  put(queue, id, job, now + profile(queue, job))
end

-- To the tail; a member joins its group instead.
local function put_available(queue, id, job)
  job.state = AVAILABLE
  job.place = count_up(meta(queue))
  if job.group and not groups().is_batch(job) then return groups().join(queue, id, job) end
  put(queue, id, job)
end

local grouping
function groups()
  if grouping then return grouping end
  -- include: groups
  grouping = {
    is_batch = is_batch, in_batch = in_batch, batch_of = batch_of, put = put_grouped, take = take_grouped,
    join = join, flush = flush, is_due = is_due, make_batch = make_batch, end_members = end_members,
    remove_members = remove_members, bring_back_members = bring_back_members,
  }
  return grouping
end
