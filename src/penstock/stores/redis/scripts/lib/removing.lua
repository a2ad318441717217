-- Remove a job on request, in any state.
-- needs: clock states queue lease_ends record partitions places lease lookup

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
  local state, job, held = look_at(queue, id)
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
