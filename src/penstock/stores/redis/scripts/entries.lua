-- List the periodic entries.
-- KEYS: the queues.  ARGV: clock.  Returns {now, per queue {name, entry, ...}}.
-- include: clock
local answer = {string.format('%.0f', now)}
for i, queue in ipairs(KEYS) do answer[i + 1] = redis.call('HGETALL', queue .. ':periodic') end
return answer
