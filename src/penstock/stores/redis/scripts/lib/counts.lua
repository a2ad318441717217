-- The number of jobs of a queue in one state.
-- needs: clock states queue

local function jobs_in(queue, state)
  if state == RUNNING then return redis.call('HLEN', queue .. ':held') end
  local n = redis.call('ZCARD', queue .. ':state/' .. state)
  if state == AVAILABLE then n = n + meta(queue).fresh end
  if state == COLLECTING then n = n + redis.call('ZCARD', queue .. IN_BATCH) end
  return n
end
