-- Store the announcement of a worker, with the time.
-- KEYS: the workers.  ARGV: clock, id, the WorkerInfo (msgpack).  Returns nothing.
-- include: size_check clock
redis.call('HSET', KEYS[1], ARGV[2], struct.pack('<d', now) .. ARGV[3])
return false
