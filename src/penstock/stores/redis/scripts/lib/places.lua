-- A job in its queue: how it enters all indexes (`put`), leaves them (`take`) and is removed (`remove`).
-- Also the indexes besides the ready lists, unique keys (`take_key`, `shift_key`, `free_key`), the messages to those
-- that wait for the end of a job (`publish_end`), and setting aside what cannot be read.
-- needs: clock states queue record partitions

local function first_place_of(name)
  return tonumber(string.match(name, '^[^/]+/[^/]+/([^/]+)'))
end

-- The ranks in `ready` of the first and the last segment of a priority; without segments, last is first - 1.
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

-- ── again: available jobs that are in no list, by place within a priority ──

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

-- ── parked jobs: by task, then in the order of available jobs ──

local put_parked, take_parked
do
  local function parked_order(job, id)
    return struct.pack('>BI7', 100 - job.priority, job.place + 4503599627370496) .. id
  end

  function put_parked(queue, id, job)
    local _, task = profile(queue, job)
    redis.call('ZADD', queue .. ':parked/' .. task, 0, parked_order(job, id))
    count_on(queue .. ':parked', task, 1)
  end

  function take_parked(queue, id, job)
    local _, task = profile(queue, job)
    redis.call('ZREM', queue .. ':parked/' .. task, parked_order(job, id))
    if count_on(queue .. ':parked', task, -1) <= 0 then
      redis.call('HDEL', queue .. ':parked', task)
    end
  end
end

-- ── unique keys: key → generation of its holder, end of its period, id of the holder; unique/until: by end ──
-- A rule (see record.lua): period, phases in which the key is held, what a second job replaces, and the key.

local QUEUED_PHASE, RUNNING_PHASE, FINISHED_PHASE = 1, 2, 4    -- as in core/unique.py

local function rule_of(unique)
  local period, phases, replaces = struct.unpack('<dBB', unique)
  return period, phases, replaces, string.sub(unique, 11)
end

local function in_phase(unique, phase)
  return bit.band(string.byte(unique, 9), phase) ~= 0
end

local function drop_key(queue, key, till)
  redis.call('HDEL', queue .. ':unique', key)
  if till ~= NONE then redis.call('ZREM', queue .. ':unique/until', key) end
end

-- The id and generation of the holder of a unique key; a key whose period is over is freed here.
local function holder(queue, key)
  local held = redis.call('HGET', queue .. ':unique', key)
  if not held then return nil end
  if #held < 16 then return drop_key(queue, key, 0) end    -- not written by Penstock
  local generation, till = struct.unpack('>I7d', held)
  local id = string.sub(held, 16)
  local ghost = meta(queue).ghosts and redis.call('SISMEMBER', queue .. ':ghosts', id) == 1
  if ghost then    -- a job that was set aside; not one if its stand-in was replaced by a new job
    local ok, job = pcall(read, redis.call('HGET', queue .. ':jobs', id))
    ghost = not ok or job.generation ~= generation
  end
  if not ghost and (till == NONE or till > now) then return id, generation end
  drop_key(queue, key, till)
end

-- Take the unique key for the rest of its period, unless another job holds it.
local function take_key(queue, id, job)
  local period, _, _, key = rule_of(job.unique)
  local till = period == NONE and NONE or job.enqueued + period
  if (till ~= NONE and till <= now) or holder(queue, key) then return end
  redis.call('HSET', queue .. ':unique', key, struct.pack('>I7d', job.generation, till) .. id)
  if till ~= NONE then redis.call('ZADD', queue .. ':unique/until', till, key) end
end

local function free_key(queue, job)
  if not job.unique then return end
  local key = string.sub(job.unique, 11)
  local held = redis.call('HGET', queue .. ':unique', key)
  if not held or #held < 16 then return end
  local generation, till = struct.unpack('>I7d', held)
  if generation == job.generation then drop_key(queue, key, till) end
end

-- Take or free the unique key of a job that changes its phase (0: none): changes.key_change.
local function shift_key(queue, id, job, before, after)
  local held, holds = in_phase(job.unique, before), in_phase(job.unique, after)
  if holds and not held then
    take_key(queue, id, job)
  elseif held and not holds then
    free_key(queue, job)
  end
end

local function phase_of(state)
  if state == COMPLETED then return FINISHED_PHASE end
  return (state == CANCELLED or state == DEAD) and 0 or QUEUED_PHASE
end

-- Whether the unique key of an ended job may still be held; `key_outlives_job`: even after the job is removed.
local function key_may_stay(job)
  return job.unique and job.state == COMPLETED and in_phase(job.unique, FINISHED_PHASE)
end

local function key_outlives_job(job)
  return key_may_stay(job) and struct.unpack('<d', job.unique) ~= NONE
end

-- Publish the end of a job to those that wait for it, with its record, which saves them a read.
local function publish_end(queue, id, record)
  local END_MESSAGE, TOO_LARGE = 'e', 'l'    -- as subscriber.py reads them
  local watchers = queue .. ':watchers'
  local channels = redis.pcall('HGET', watchers, id)
  if type(channels) ~= 'string' then return end    -- nobody waits, or the key holds something else
  redis.call('HDEL', watchers, id)
  local name = name_of(queue)
  local message = END_MESSAGE .. struct.pack('>BB', #name, #id) .. name .. id
    .. (#record <= 65536 and record or TOO_LARGE)
  for channel in string.gmatch(channels, '[^ ]+') do redis.call('PUBLISH', channel, message) end
end

-- ── a job and all its indexes ──

local function ended_state(state)
  return state == COMPLETED or state == CANCELLED or state == DEAD
end

local batches    -- the functions of batches.lua, loaded at the first call

-- Ask for the keys that a job of this kind needs besides those of its queue, as sound.lua does, before its first write: an
-- error must not leave a job that is in none of its indexes.
local ask_for_keys, ask_for_state
do
  local asked = {}

  local function ask(key)
    if asked[key] then return end
    redis.call('ZCARD', key)
    asked[key] = true
  end

  function ask_for_keys(queue, job)
    ask(queue .. ':ready')
    ask(queue .. ':again/' .. job.priority)
    if job.expires then ask(queue .. ':expiring') end
    if job.partition then ask(partition_of(queue, terms_of(job))) end
    if job.tenant or meta(queue).fair then ask(queue .. ':tenants/' .. job.priority) end
    if job.batch and not batches().is_batch(job) then ask(queue .. ':batch/' .. batches().name(queue, job)) end
    if job.state == PARKED then
      local _, task = profile(queue, job)
      ask(queue .. ':parked/' .. task)
    end
  end

  -- The same for the keys of a state that are written after another one.
  function ask_for_state(queue, state)
    ask(queue .. ':state/' .. state)
    if state == COMPLETED or state == CANCELLED or state == DEAD then ask(queue .. ':over') end
  end
end

function put(queue, id, job, over)
  if job.partition then enter(queue, id, job) end
  local state = job.state
  job.fresh, job.moved = false, false
  if state == COLLECTING then return batches().put(queue, id, job) end
  ask_for_state(queue, state)
  if state == AVAILABLE then
    if job.at_tail and meta(queue).fair then assign_place(queue, job) end
    put_again(queue, id, job)
    made_ready[queue] = true
  elseif state == WAITING then
    redis.call('ZADD', partition_of(queue, terms_of(job)), 1, waiting_order(job, id))
  elseif state == SCHEDULED or state == RETRYABLE or state == SUSPENDED then
    redis.call('ZADD', queue .. ':due', job.run, order(job, id))
    made_due[queue] = math.min(made_due[queue] or job.run, job.run)
  elseif state == PARKED then
    put_parked(queue, id, job)
  else
    redis.call('ZADD', queue .. ':ended/' .. state, job.ended, order(job, id))
    redis.call('ZADD', queue .. ':over', over, order(job, id))
    if not key_may_stay(job) then free_key(queue, job) end
  end
  redis.call('ZADD', queue .. ':state/' .. state, job.generation, id)
  local record = write(job)
  redis.call('HSET', queue .. ':jobs', id, record)
  if ended_state(state) then
    publish_end(queue, id, record)
    if job.flow then note_flow(queue, id, job, state) end
    if job.steps then parent_ended(queue, job, state) end
    if job.batch and batches().is_batch(job) then batches().end_members(queue, id, job, over) end
  elseif job.expires then
    redis.call('ZADD', queue .. ':expiring', job.expires, order(job, id))
  end
  if job.partition then advance(queue, terms_of(job).key) end
end

function take(queue, id, job)
  local state = job.state
  ask_for_keys(queue, job)
  ask_for_state(queue, state)
  if state == COLLECTING then return batches().take(queue, id, job) end
  if state == AVAILABLE then
    if job.fresh or job.moved then take_ready(queue, id, job) else take_again(queue, id, job) end
    give_back(queue, job)
  elseif state == WAITING then
    redis.call('ZREM', partition_of(queue, terms_of(job)), waiting_order(job, id))
  elseif state == SCHEDULED or state == RETRYABLE or state == SUSPENDED then
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

-- Remove a job from all indexes after another program has deleted its record.
local function forget_traces(queue, id, order_of_it)
  for _, name in ipairs({':due', ':expiring', ':over'}) do redis.call('ZREM', queue .. name, order_of_it) end
  for state = SCHEDULED, SUSPENDED do
    redis.call('ZREM', queue .. ':state/' .. state, id)
    if ended_state(state) then redis.call('ZREM', queue .. ':ended/' .. state, order_of_it) end
  end
end

-- Remove an index entry without a job: the record was overwritten, or the job has another place now.
local function forget_order(queue, member)
  for _, name in ipairs({':due', ':expiring', ':over'}) do redis.call('ZREM', queue .. name, member) end
  for state = COMPLETED, DEAD do redis.call('ZREM', queue .. ':ended/' .. state, member) end
end

-- Remove a job that was taken from its indexes, with the members of a batch. forgotten: by retention, not on request.
-- keeps_key: its unique key stays held, if the key has a period.
local function remove(queue, id, job, forgotten, keeps_key)
  if job.flow and (not ended_state(job.state) or forgotten and not job.counted) then
    note_flow(queue, id, job, ended_state(job.state) and job.state or RUNNING)
  end
  if job.batch and batches().is_batch(job) then batches().remove_members(queue, id, job, forgotten) end
  local stays = keeps_key and job.unique and struct.unpack('<d', job.unique) ~= NONE
  if not stays and not (forgotten and key_outlives_job(job)) then free_key(queue, job) end
  redis.call('HDEL', queue .. ':jobs', id)
  if job.steps then
    parent_ended(queue, job, job.state)
    redis.call('DEL', steps_of(queue, job))
  end
  publish_end(queue, id, '')
  if job.partition then
    leave(queue, id, job)
    advance(queue, terms_of(job).key)
  end
end

-- Cancel a queued job that was taken from its indexes; or end it in another state, which is then kept for `keep` ms.
function end_queued(queue, id, job, reason, state, keep)
  job.state, job.ended, job.reason = state or CANCELLED, now, reason
  local m = meta(queue)
  if m.size then m.size = m.size - 1 end
  put(queue, id, job, now + (keep or profile(queue, job)))
end

-- Put a job at the tail of its queue; a member joins its collecting batch instead.
local function put_available(queue, id, job)
  job.state = AVAILABLE
  job.place, job.at_tail = count_up(meta(queue)), true
  if job.batch and not batches().is_batch(job) then return batches().join(queue, id, job) end
  put(queue, id, job)
end

-- Make a job dead whose record cannot be read or moved; returns the stand-in.
local asides
function set_aside(queue, id, record, cause, taken)
  if not asides then
    -- include: aside
    asides = put_aside
  end
  return asides(queue, id, record, cause, taken)
end

-- Whether this is the stand-in of an unreadable record, which nothing can run.
local function is_stand_in(job)
  return string.sub(job.tail, 13, 31) == '(unreadable record)' and job.tail_flags >= 32
end

local loaded_batches
function batches()
  if loaded_batches then return loaded_batches end
  -- include: batches
  loaded_batches = {
    is_batch = is_batch, in_batch = in_batch, batch_of = batch_of, put = put_collecting, take = take_collecting,
    join = join, flush = flush, is_due = is_due, make_batch = make_batch, end_members = end_members,
    remove_members = remove_members, bring_back_members = bring_back_members, recount = recount,
    with_part = with_part, name = batch_name,
  }
  return loaded_batches
end
