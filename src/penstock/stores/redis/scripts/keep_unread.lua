-- Keep an entry of the outbox that cannot be read, as a dead job.
-- KEYS: the queue.  ARGV: clock, name of the entry, its bytes as read by the caller, id of the job, cause.
-- Returns nothing.
-- include: size_check clock states queue record partitions places
local queue, out = KEYS[1], KEYS[1] .. ':out'
if redis.call('HGET', out, ARGV[2]) ~= ARGV[3] then return false end
redis.call('HDEL', out, ARGV[2])
local id = ARGV[4]
if redis.call('HEXISTS', queue .. ':jobs', id) == 0 then
  redis.call('HSET', queue .. ':jobs', id, ARGV[3])
  set_aside(queue, id, ARGV[3], ARGV[5], true)
  set_asides = {}    -- the caller reports it
end
finish()
return false
