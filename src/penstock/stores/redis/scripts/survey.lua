-- What a prune would find in this queue.
-- KEYS: the queue.  ARGV: clock, limit, keep_finished, keep_dead.
-- Returns {ended jobs past their retention (id order and instant, alternating), 1 if too many ended ones are
-- kept, expired jobs (likewise), 1 if there are old days}.
-- include: clock record queue days
local queue, limit = KEYS[1], tonumber(ARGV[2])
local over = redis.call('ZRANGEBYSCORE', queue .. ':over', '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
local expired = redis.call('ZRANGEBYSCORE', queue .. ':expiring', '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
local crowded = 0
for _, state in ipairs({COMPLETED, CANCELLED, DEAD}) do
  local keep = tonumber(state == DEAD and ARGV[4] or ARGV[3])
  if redis.call('ZCARD', queue .. ':ended/' .. state) > math.max(0, keep) then crowded = 1 end
end
return {over, crowded, expired, #old_days(queue) > 0 and 1 or 0}
