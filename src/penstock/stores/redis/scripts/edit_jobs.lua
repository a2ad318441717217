-- Give a queued job new arguments, if it is still as it was seen.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), id, what was seen (insert.lua), form and tail of a call (as in
-- enqueue).
-- Returns {1 if the job was changed, else 0, the highest generation}.
-- include: clock states queue sound profiles record partitions places insert
local queue, id, form, tail = KEYS[1], ARGV[3], ARGV[5], ARGV[6]
minted = tonumber(ARGV[2])
local job = job_as_seen(queue, id, ARGV[4])
if job then replace_job(queue, id, REPLACES_ARGUMENTS, tail, read_form(form)) end
finish()
return {job and 1 or 0, string.format('%.0f', minted)}
