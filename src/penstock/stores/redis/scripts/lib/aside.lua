-- Set aside a job whose record or lease cannot be read or moved: make it dead, and replace its record by a readable
-- stand-in, with the bytes of the old record as its payload. The job leaves every index that can be determined. If its
-- partition or unique key cannot be determined, its id is added to `ghosts`, which is checked when a partition is full
-- or a unique key is held.
-- needs: clock states queue record partitions places

local MOST_CAUSE = 250

-- The lease; nil if it cannot be read.
local function lease_or_nil(held)
  local ok, lease = pcall(read_held, held)
  return ok and lease or nil
end

-- Count the leases of each token again, because the token of an unreadable lease is unknown.
local function recount_tokens(queue)
  local counts = {}
  for _, held in ipairs(redis.call('HVALS', queue .. ':held')) do
    local lease = lease_or_nil(held)
    if lease then counts[lease.token] = (counts[lease.token] or 0) + 1 end
  end
  redis.call('DEL', queue .. ':tokens')
  for token, n in pairs(counts) do redis.call('HSET', queue .. ':tokens', token, n) end
end

-- Remove the lease of a job; returns whether it had one.
local function end_lease(queue, id, job)
  local held = redis.call('HGET', queue .. ':held', id)
  if not held then return false end
  redis.call('HDEL', queue .. ':held', id)
  local generation = job and string.sub(order(job, id), 1, 7) or string.sub(held, 1, 7)
  if redis.call('ZREM', queue .. ':leases', generation .. id) == 0 then
    for _, member in ipairs(redis.call('ZRANGE', queue .. ':leases', 0, -1)) do
      if string.sub(member, 8) == id then redis.call('ZREM', queue .. ':leases', member) end
    end
  end
  recount_tokens(queue)
  return true
end

-- Remove a job from the ready lists and from `again`.
local function leave_ready(queue, id)
  for _, name in ipairs(redis.call('ZRANGE', queue .. ':ready', 0, -1)) do
    local priority = string.match(name, '^(.-)/again$')
    local list = queue .. ':ready/' .. name
    if priority then
      if redis.call('ZREM', queue .. ':again/' .. priority, id) == 1 then return close_again(queue, priority) end
    elseif redis.call('LREM', list, 1, id) == 1 then
      if redis.call('EXISTS', list) == 0 then close_segment(queue, name) end
      if not is_moved(name) then meta(queue).fresh = meta(queue).fresh - 1 end
      return
    end
  end
end

local function leave_parked(queue, id)
  for _, task in ipairs(redis.call('HKEYS', queue .. ':parked')) do
    for _, member in ipairs(redis.call('ZRANGE', queue .. ':parked/' .. task, 0, -1)) do
      if string.sub(member, 9) == id then
        redis.call('ZREM', queue .. ':parked/' .. task, member)
        local left = redis.call('ZCARD', queue .. ':parked/' .. task)
        if left > 0 then
          redis.call('HSET', queue .. ':parked', task, left)
        else
          redis.call('HDEL', queue .. ':parked', task)
        end
      end
    end
  end
end

local function leave_batch(queue, id)
  for _, name in ipairs(redis.call('HKEYS', queue .. ':batches')) do
    if redis.call('ZREM', queue .. ':batch/' .. name, id) == 1 then batches().recount(queue, name) end
  end
end

-- Remove a job from all indexes, and return its state by them (nil: in none). taken: it is in no ready list any more.
local function leave_indexes(queue, id, job, taken)
  local state
  for number = SCHEDULED, SUSPENDED do
    if redis.call('ZREM', queue .. ':state/' .. number, id) == 1 then state = number end
  end
  if redis.call('ZREM', queue .. IN_BATCH, id) == 1 then return COLLECTING end
  if job then forget_traces(queue, id, order(job, id)) end
  if state == PARKED then leave_parked(queue, id) end
  if state == COLLECTING then leave_batch(queue, id) end
  if not taken and (not state or state == AVAILABLE) then leave_ready(queue, id) end
  return state
end

-- Remove a job from a partition that its record does not name: search the partitions of waiting jobs.
local function leave_partitions(queue, id)
  local seen = {}
  for _, waiting in ipairs(redis.call('ZRANGE', queue .. ':state/' .. WAITING, 0, 999)) do
    local ok, job = pcall(read, redis.call('HGET', queue .. ':jobs', waiting))
    local key = ok and job.partition and terms_of(job).key
    if key and not seen[key] then
      seen[key] = true
      if redis.call('ZREM', queue .. ':partition/' .. key, id) == 1 then advance(queue, key) end
    end
  end
end

local function add_ghost(queue, id)
  redis.call('SADD', queue .. ':ghosts', id)
  redis.call('HSET', queue .. ':meta', 'ghosts', 1)
  meta(queue).ghosts = true
  leave_partitions(queue, id)
end

local function leave_partition(queue, id, job)
  local key = terms_of(job).key
  redis.call('ZREM', queue .. ':partition/' .. key, id, waiting_order(job, id))
  job.admitted = false
  advance(queue, key)
end

-- End the members of a batch that is set aside, and detach them from it.
local function end_its_members(queue, id, over, reason)
  for _, member_id in ipairs(redis.call('ZRANGE', queue .. IN_BATCH, 0, -1)) do
    local ok, member = pcall(read, redis.call('HGET', queue .. ':jobs', member_id))
    if ok and member.batch and batches().batch_of(member) == id then
      redis.call('ZREM', queue .. IN_BATCH, member_id)
      member.state, member.ended, member.reason = DEAD, now, reason
      member.batch = batches().with_part(member, '')
      put(queue, member_id, member, over)
    end
  end
end

local function count_failure(queue)
  local day = math.floor(now / 86400000)
  for _, name in ipairs({'processed', 'failed'}) do
    count_on(queue .. ':meta', name, 1)
    count_on(queue .. ':days', day .. '/' .. name, 1)
  end
end

-- The stand-in's record carries its profile, in the form that profiles.Profiles writes.
local UNREADABLE_TASK = '(unreadable record)'
local PROFILE = struct.pack('<dI2c0', 600000, #UNREADABLE_TASK, UNREADABLE_TASK)
  .. '\152' .. string.char(160 + #UNREADABLE_TASK) .. UNREADABLE_TASK .. '\192\1\192\0\194\192\194'

local function stand_in(queue, record, job, cause)
  minted = math.max(minted, job and 0 or count_up(meta(queue), minted))
  local generation = job and job.generation or minted
  return {
    state = DEAD, generation = generation, priority = job and job.priority or 0, enqueued = job and job.enqueued or now,
    run = job and job.run or now, place = generation, attempt = job and job.attempt or 0, lost = job and job.lost or 0,
    ended = now, reason = 'unreadable record: ' .. string.sub(cause, 1, MOST_CAUSE), tail_flags = 32,
    tail = struct.pack('<I2c0', #PROFILE, PROFILE) .. record,
  }
end

local function put_aside(queue, id, record, cause, taken)
  local ok, job = pcall(read, record)
  job = ok and job or nil
  local before = leave_indexes(queue, id, job, end_lease(queue, id, job) or taken)
  if not (before and ended_state(before)) then count_failure(queue) end
  if job and job.unique then free_key(queue, job) end
  if job and job.flow and not (before and ended_state(before)) then note_flow(queue, id, job, DEAD) end
  if job and job.steps then
    parent_ended(queue, job)
    redis.call('DEL', steps_of(queue, job))
  end
  local dead = stand_in(queue, record, job, cause)
  local over = now + DEAD_KEPT
  put(queue, id, dead, over)
  end_its_members(queue, id, over, dead.reason)
  if not job then
    if not (before and ended_state(before)) then add_ghost(queue, id) end
  elseif job.partition then
    leave_partition(queue, id, job)
  end
  note_set_aside(queue, id, cause)
  return dead
end
