-- Find the state of a job by its id.
-- needs: states queue record partitions places

-- Returns the state (nil: the job does not exist), the job, the lease.
local function look_at(queue, id)
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
