-- Enqueue a job in the place of another one of its queue, which is removed. If the new job is not stored, the other one
-- stays.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), digest and profile, id of the other job, then id, form and tail
-- of the new one (as in enqueue).
-- Returns {the highest generation, 1 in a list if the queue was new, the status code of the new job (as in enqueue),
-- then for DUPLICATE the id of the holder of the unique key, for FULL the refusal (`count_new` in limits.lua)}.
-- include: clock states queue sound profiles leases record partitions places insert one_job
local queue, floor, old, id, form, tail = KEYS[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local status, has, new = EXISTS, nil, {}
if redis.call('HEXISTS', queue .. ':jobs', id) == 0 then status, has = enqueue_status(queue, form, false) end
if status == REPLACED then
  replace_holder(queue, has, form, tail)
elseif status == NEW then
  local m = meta(queue)
  local flags, stored = tail_of(tail, profile_keeper(3, 1)(queue, string.sub(tail, 2, 5)))
  floor = count_up(m, floor)
  if m.new then new[1] = 1 end
  m.enqueued = m.enqueued + 1
  store_new(queue, id, form, floor, flags, stored)
  remove_now(queue, old, true, true)
  count_ended(queue)
end
finish()
if room_was_made and not made_ready[queue] then wake_for_room(queue) end
return {string.format('%.0f', math.max(floor, minted, meta(queue).generation)), new, status, has}
