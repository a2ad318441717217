-- Find one job by its id, in any state, and remove or cancel it on request.
-- needs: clock states queue leases record partitions places

-- Returns the state (nil: the job does not exist), the job, the lease.
local function find_job(queue, id)
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record then return nil end
  local held = redis.call('HGET', queue .. ':held', id)
  if held and pcall(read_held, held) then return RUNNING, nil, held end
  if held then
    local dead = set_aside(queue, id, record, 'its lease cannot be read')
    return dead.state, dead
  end
  local job = readable(queue, id, record)
  return job.state, job
end

-- ── removing ──

local attempts_ended, room_was_made = 0, false

-- End the lease of a running job, and return the job: it is in no index. Nothing if its record cannot be read: then it
-- was set aside, and is dead.
local function end_attempt(queue, id, held)
  local lease = read_held(held)
  local job, aside = readable(queue, id, redis.call('HGET', queue .. ':jobs', id))
  if aside then
    room_was_made = true
    return nil, job
  end
  remove_leases(queue, lease.token, {id}, {string.sub(held, 1, 7) .. id})
  attempts_ended = attempts_ended + 1
  if lease.flags >= LIMITED then room_was_made = true end
  return job
end

-- Remove a job, with `with_running` also if it is running. keeps_key: its unique key stays held for its period.
-- Returns the state before; nil if the job does not exist.
local function remove_now(queue, id, with_running, keeps_key)
  local runs
  local state, job, held = find_job(queue, id)
  if state == RUNNING and with_running then
    runs, job = end_attempt(queue, id, held)
    if runs then remove(queue, id, runs, false, keeps_key) end
  end
  if job and not (state == COLLECTING and batches().in_batch(job)) then
    take(queue, id, job)
    remove(queue, id, job, false, keeps_key)
  end
  return state
end

-- Count the attempts that have ended, after all jobs are removed.
local function count_ended(queue)
  if attempts_ended > 0 then count_processed(queue, attempts_ended) end
end

-- ── cancelling ──

-- Cancel a queued job, or ask a running job to stop; the record of a running job keeps the reason. One with steps to undo
-- is asked to stop, too: the worker that takes it undoes them.
-- Returns the job's state after the call (nil: it does not exist; RUNNING: also of one with steps to undo), and whether a
-- running job was asked to stop by this call.
local DEFAULT_REASON = 'cancelled before it started'    -- lifecycle.ASK_CANCELLED

local function ask_to_undo(queue, id, job, reason)
  job.asked, job.reason = true, reason ~= DEFAULT_REASON and reason or nil
  if job.state == AVAILABLE or job.state == WAITING then
    redis.call('HSET', queue .. ':jobs', id, write(job))
  else
    take(queue, id, job)
    job.run = now
    put_available(queue, id, job)
  end
end

local function cancel_job(queue, id, reason)
  local state, job, held = find_job(queue, id)
  if state == RUNNING then
    if bit.band(flags_of(held), ASKED) ~= 0 then return state, false end
    set_flag(queue, id, held, ASKED)
    if reason ~= DEFAULT_REASON then
      local running = read(redis.call('HGET', queue .. ':jobs', id))
      running.reason = reason
      redis.call('HSET', queue .. ':jobs', id, write(running))
    end
    return state, true
  end
  if not state or ended_state(state) then return state, false end
  if state == COLLECTING and batches().in_batch(job) then return state, false end
  if job.steps and redis.call('HEXISTS', steps_of(queue, job), '=undo!') == 1 then    -- stepping.STEP_UNDO
    if not job.asked then ask_to_undo(queue, id, job, reason) end
    return RUNNING, false
  end
  take(queue, id, job)
  end_queued(queue, id, job, reason)
  return CANCELLED, false
end
