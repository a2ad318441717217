-- Store a job that follows one of another slot. A closed or full queue takes it. If its id is taken it is left out;
-- if its unique key is held it is left out, or replaces what the holder asks for.
-- KEYS: the queue.  ARGV: clock, floor (as of enqueue), how many profiles, those (digest, profile), id, form,
-- tail.  Returns the highest generation.
-- include: clock states status_codes queue profiles record partitions places
local function follow()    -- a function has 200 local names at most, and what is included above has most of them
  -- include: replacing insert
  local queue, floor, at = KEYS[1], tonumber(ARGV[2]), 4 + 2 * ARGV[3]
  local id, form, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local verdict, has
  if redis.call('HEXISTS', queue .. ':jobs', id) == 0 then verdict, has = verdict_on(queue, form, true) end
  if verdict == REPLACED then
    replace_holder(queue, has, form, tail)
  elseif verdict == NEW then
    local flags, stored = tail_of(tail, profile_keeper(4, tonumber(ARGV[3]))(queue, string.sub(tail, 2, 5)))
    floor = count_up(meta(queue), floor)
    store_new(queue, id, form, floor, flags, stored)
    floor = math.max(floor, minted)
    meta(queue).enqueued = meta(queue).enqueued + 1
  end
  finish()
  return string.format('%.0f', floor)
end

return follow()
