-- Cancel queued jobs, ask running ones to stop.
-- KEYS: the queue.  ARGV: clock, reason, ids.  Returns {how many running ones were asked anew, a letter per
-- job: its state, - for none}.
-- include: room clock states record queue places lease letters
local asked, letters = 0, {}
for i = 3, #ARGV do
  local queue, id = KEYS[1], ARGV[i]
  local state, job, held = look_at(queue, id)
  if state == RUNNING then
    local flags_at = 17 + string.byte(held, 8)
    local flags = string.byte(held, flags_at)
    if bit.band(flags, ASKED) == 0 then
      redis.call('HSET', queue .. ':held', id,
        string.sub(held, 1, flags_at - 1) .. string.char(flags + ASKED) .. string.sub(held, flags_at + 1))
      asked = asked + 1
    end
  elseif state and not ended_state(state) then
    take(queue, id, job)
    end_queued(queue, id, job, ARGV[2])
    state = CANCELLED
  end
  letters[#letters + 1] = letter_of(state)
end
finish()
return {asked, table.concat(letters)}
