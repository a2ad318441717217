-- Move a queued job to another queue, if it is still as it was seen; or, if that queue is on another server, remove it and
-- leave an entry in `out`, from which it is delivered (receive.lua).
-- KEYS: the queue, and unless it is on another server, the other queue.  ARGV: clock, floor (as in enqueue), id, what was
-- seen (insert.lua), then the entry; or digest and profile, form, tail (as in enqueue), what the job brings along
-- (insert.lua).
-- Returns {the highest generation, 1 in a list if the other queue was new, the status code of the job in the other queue
-- (as in enqueue), or "-" if it is not as it was seen, then for FULL the refusal (`count_new` in limits.lua), and for an
-- entry its name}.
-- include: size_check clock states queue sound profiles record partitions places insert
local queue, to, floor, id, new, status, has = KEYS[1], KEYS[2], tonumber(ARGV[2]), ARGV[3], {}, NEW, nil
local elsewhere = #ARGV == 5
local job = job_as_seen(queue, id, ARGV[4])
if not job then
  status = NOT_THERE
elseif not elsewhere then
  local m = meta(to)
  if redis.call('HEXISTS', to .. ':jobs', id) == 1 then
    status = EXISTS
  elseif m.closed then
    status = CLOSED
  elseif m.limited then
    has = limiting().count_new(to, m)
    if has then status = FULL end
  end
end
if status == NEW then
  if not elsewhere then ask_for_keys_of(to, ARGV[7], ARGV[6]) end
  take(queue, id, job)
  remove(queue, id, job, false, false)
  if elsewhere then
    floor = count_up(meta(queue), floor)
    has = string.format('m%.0f.%.0f', job.generation, now)    -- the generation is this job's alone
    redis.call('HSET', queue .. ':out', has, struct.pack('<d', floor) .. ARGV[5])
  else
    if meta(to).new then new[1] = 1 end
    floor = store_moved(to, id, ARGV[7], ARGV[8], ARGV[9], floor, 5)
  end
end
finish()
return {string.format('%.0f', math.max(floor, meta(queue).generation)), new, status, has}
