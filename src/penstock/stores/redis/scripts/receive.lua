-- Store a job that was moved here from a queue of another server, once under a name. A closed or full queue takes it. The
-- name is remembered for 30 days, or until an hour after the delivery was confirmed (see delivering.py).
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), digest and profile, id, form, tail (as in enqueue), what the job
-- brings along (insert.lua), the name.
-- Returns the highest generation; -1 if another job has the id: the delivery is to be repeated.
-- include: clock states queue sound profiles record partitions places insert
local queue, floor, id, once = KEYS[1], tonumber(ARGV[2]), ARGV[5], KEYS[1] .. ':once/' .. ARGV[9]
if redis.call('EXISTS', once) == 0 then
  if redis.call('HEXISTS', queue .. ':jobs', id) == 1 then return '-1' end
  redis.call('SET', once, 1, 'EX', 2592000)
  floor = store_moved(queue, id, ARGV[6], ARGV[7], ARGV[8], floor, 3)
end
finish()
return string.format('%.0f', floor)
