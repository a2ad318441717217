-- Delete periodic entries.
-- KEYS: the queue.  ARGV: clock, names.  Returns per name 1 if the entry existed, else 0.
-- include: clock
local answer = {}
for i = 2, #ARGV do answer[i - 1] = redis.call('HDEL', KEYS[1] .. ':periodic', ARGV[i]) end
return answer
