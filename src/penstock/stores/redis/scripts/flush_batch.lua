-- Make a collecting batch available now, before it is due.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), name of the batch (task, zero byte, batch key).
-- Returns {the highest generation, the id of the batch job, or nothing}.
-- include: size_check clock states queue record partitions places
local queue, made = KEYS[1], false
minted = tonumber(ARGV[2])
if redis.call('HEXISTS', queue .. ':batches', ARGV[3]) == 1 then made = batches().flush(queue, ARGV[3]) or false end
finish()
return {string.format('%.0f', minted), made}
