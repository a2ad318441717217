-- Get jobs as they are now.
-- KEYS: the queue.  ARGV: clock, ids.  Returns per job its record and its lease (or nothing): 2 entries. An answer of 8
-- MiB or more ends early; the caller asks again for the rest.
local found, bytes = {}, 0
for first = 2, #ARGV, 100 do
  local ids = {unpack(ARGV, first, math.min(first + 99, #ARGV))}
  local jobs = redis.call('HMGET', KEYS[1] .. ':jobs', unpack(ids))
  local held = redis.call('HMGET', KEYS[1] .. ':held', unpack(ids))
  for i = 1, #ids do
    if bytes >= 8388608 then return found end
    found[#found + 1] = jobs[i]
    found[#found + 1] = held[i]
    bytes = bytes + (jobs[i] and #jobs[i] or 0)
  end
end
return found
