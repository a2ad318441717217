-- Find the state of a job by its id, and encode a state as one character of an answer.
-- needs: states queue record partitions places

local NOT_THERE = '-'

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

local function status_code(state)
  return state and string.char(48 + state) or NOT_THERE    -- 10 is ':'
end
