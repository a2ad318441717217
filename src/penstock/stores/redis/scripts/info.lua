-- What there is of a queue.
-- KEYS: the queue.  ARGV: clock.  Returns {whether it is known (1, 0), paused, closed, oldest available
-- (run_at; '' if none), available, scheduled, retryable, completed, cancelled, dead, parked, running}.
-- include: clock states record queue places listing
local queue = KEYS[1]
local m = meta(queue)
local oldest = tonumber(redis.call('ZRANGE', queue .. ':oldest', 0, 0, 'WITHSCORES')[2])
for _, priority in ipairs(bands(queue)) do
  local low = (100 - priority) * BAND
  local name = redis.call('ZRANGEBYSCORE', queue .. ':ready', string.format('(%.0f', low),
    string.format('(%.0f', low + BAND), 'LIMIT', 0, 1)[1]
  local id = name and redis.call('LINDEX', queue .. ':ready/' .. name, 0)
  if id then
    local run = read(redis.call('HGET', queue .. ':jobs', id)).run
    oldest = math.min(oldest or run, run)
  end
end
local answer = {
  redis.call('EXISTS', queue .. ':meta'), m.paused and 1 or 0, m.closed and 1 or 0,
  oldest and string.format('%.0f', oldest) or '',
  m.fresh + redis.call('ZCARD', queue .. ':state/' .. AVAILABLE),
}
for _, state in ipairs({SCHEDULED, RETRYABLE, COMPLETED, CANCELLED, DEAD, PARKED}) do
  answer[#answer + 1] = redis.call('ZCARD', queue .. ':state/' .. state)
end
answer[#answer + 1] = redis.call('HLEN', queue .. ':held')
return answer
