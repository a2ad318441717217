-- Find what to prune in each queue.
-- KEYS: the queues.  ARGV: clock, limit, keep_finished, keep_dead.
-- Returns per queue {ended jobs past their retention (index entry and instant, alternating), 1 if more ended jobs than
-- allowed are kept, expired jobs (entry and instant), 1 if there are old days or unused keys of partitions or fair
-- shares, names in `out`, number of unique keys whose period is over, records that other scripts have set aside (see
-- queue.lua)}.
-- include: clock states queue record partitions places
local limit, answer = tonumber(ARGV[2]), {}

local function past(order)
  return redis.call('ZRANGEBYSCORE', order, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
end

for i, queue in ipairs(KEYS) do
  local crowded = 0
  for _, state in ipairs({COMPLETED, CANCELLED, DEAD}) do
    local excess = limiting().excess_of(queue, meta(queue), state, tonumber(ARGV[3]), tonumber(ARGV[4]))
    if excess > 0 then crowded = 1 end
  end
  answer[i] = {
    past(queue .. ':over'), crowded, past(queue .. ':expiring'),
    (#old_days(queue) > 0 or has_idle_partitions(queue)) and 1 or 0,
    redis.call('HKEYS', queue .. ':out'),
    redis.call('ZCOUNT', queue .. ':unique/until', '-inf', now),
    redis.call('LRANGE', queue .. ':asides', 0, -1),
  }
  if #answer[i][7] > 0 then redis.call('DEL', queue .. ':asides') end    -- the caller reports them
end
return answer
