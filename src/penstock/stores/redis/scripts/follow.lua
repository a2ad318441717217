-- Store a job that follows one of another slot: a closed queue takes it, and if its id or its unique key is
-- taken it is left out.
-- KEYS: the queue.  ARGV: clock, how many profiles, those (digest, profile), id, form, tail.
-- Returns nothing.
-- include: clock record queue new
local queue, at = KEYS[1], 3 + 2 * ARGV[2]
local id, form, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2]
if redis.call('HEXISTS', queue .. ':jobs', id) == 0 and verdict_on(queue, form, true) == 'n' then
  local flags, stored = tail_of(tail, profile_keeper(3, tonumber(ARGV[2]))(queue, string.sub(tail, 2, 5)))
  store_new(queue, id, form, count_up(meta(queue)), flags, stored)
  redis.call('HINCRBY', queue .. ':meta', 'enqueued', 1)
end
finish()
return false
