-- Cancel a queued job, or ask a running job to stop; the record of a running job keeps the reason.
-- Returns the job's state after the call (nil: it does not exist), and whether it was asked to stop by this call.
-- needs: states queue record partitions places lookup

local function cancel_job(queue, id, reason)
  local state, job, held = look_at(queue, id)
  if state == RUNNING then
    local flags_at = 17 + string.byte(held, 8)
    local flags = string.byte(held, flags_at)
    if bit.band(flags, ASKED) ~= 0 then return state, false end
    redis.call('HSET', queue .. ':held', id,
      string.sub(held, 1, flags_at - 1) .. string.char(flags + ASKED) .. string.sub(held, flags_at + 1))
    if reason ~= 'cancelled before it started' then    -- lifecycle.ASK_CANCELLED, the default
      local running = read(redis.call('HGET', queue .. ':jobs', id))
      running.reason = reason
      redis.call('HSET', queue .. ':jobs', id, write(running))
    end
    return state, true
  end
  if not state or ended_state(state) then return state, false end
  if state == COLLECTING and batches().in_batch(job) then return state, false end
  take(queue, id, job)
  end_queued(queue, id, job, reason)
  return CANCELLED, false
end
