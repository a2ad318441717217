-- Enqueue a job that follows a settled job of another cluster slot. A closed or full queue takes it. The job is not
-- stored if its id is taken. If its unique key is held, the job is not stored, or replaces the content of the holder.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), number of profiles, the profiles (digest, profile), id, form,
-- tail, and for a node of a flow a name: it is enqueued only once under this name, and if it is not stored, its node
-- ends. The name is remembered for 30 days, or until an hour after the delivery was confirmed (see delivering.py).
-- Returns the highest generation.
-- include: clock states queue sound profiles record partitions places insert
local queue, floor, at = KEYS[1], tonumber(ARGV[2]), 4 + 2 * ARGV[3]
local id, form, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2]
local status, has
local once = ARGV[at + 3]
if once and not redis.call('SET', queue .. ':once/' .. once, 1, 'NX', 'EX', 2592000) then
  return string.format('%.0f', floor)
end
if redis.call('HEXISTS', queue .. ':jobs', id) == 0 then status, has = enqueue_status(queue, form, true) end
if once and status ~= NEW then
  note_flow(queue, id, first_facts(0, form), RUNNING)    -- the node ends, because its id is taken
elseif status == REPLACED then
  replace_holder(queue, has, form, tail)
elseif status == NEW then
  local flags, stored = tail_of(tail, profile_keeper(4, tonumber(ARGV[3]))(queue, string.sub(tail, 2, 5)))
  floor = count_up(meta(queue), floor)
  store_new(queue, id, form, floor, flags, stored)
  floor = math.max(floor, minted)
  meta(queue).enqueued = meta(queue).enqueued + 1
end
finish()
return string.format('%.0f', floor)
