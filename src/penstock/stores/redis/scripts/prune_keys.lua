-- Remove unique keys whose period is over.
-- KEYS: the queue.  ARGV: clock, limit.  Returns how many were removed.
-- include: size_check clock
local ends = KEYS[1] .. ':unique/until'
local over = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, tonumber(ARGV[2]))
for i = 1, #over, 4000 do
  local some = {unpack(over, i, math.min(i + 3999, #over))}
  redis.call('HDEL', KEYS[1] .. ':unique', unpack(some))
  redis.call('ZREM', ends, unpack(some))
end
return #over
