-- The jobs as they are now.
-- KEYS: the queue.  ARGV: clock, ids.  Returns per job its record and its lease (or nothing): 2 × n entries.
local ids = {unpack(ARGV, 2)}
local jobs = redis.call('HMGET', KEYS[1] .. ':jobs', unpack(ids))
local held = redis.call('HMGET', KEYS[1] .. ':held', unpack(ids))
local found = {}
for i = 1, #ids do
  found[2 * i - 1], found[2 * i] = jobs[i], held[i]
end
return found
