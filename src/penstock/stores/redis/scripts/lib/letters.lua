-- The state of a job by its id, and as one letter of an answer.

local RUNNING = 7

-- State (nil: not there), job, lease.
local function look_at(queue, id)
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record then return nil end
  local held = redis.call('HGET', queue .. ':held', id)
  if held then return RUNNING, nil, held end
  local job = read(record)
  return job.state, job
end

local function letter_of(state)
  return state and tostring(state) or '-'
end
