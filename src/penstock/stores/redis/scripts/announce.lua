-- Store what a worker says of itself, with the time.
-- KEYS: the workers.  ARGV: clock, id, what it says of itself.  Returns nothing.
-- include: size_check clock
redis.call('HSET', KEYS[1], ARGV[2], struct.pack('<d', now) .. ARGV[3])
return false
