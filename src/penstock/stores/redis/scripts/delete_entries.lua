-- Delete periodic entries.
-- KEYS: the queue.  ARGV: clock, names.  Returns 1 or 0 for each: whether it was there.
-- include: clock
local answer = {}
for i = 2, #ARGV do answer[i - 1] = redis.call('HDEL', KEYS[1] .. ':periodic', ARGV[i]) end
return answer
