-- Cancel jobs that wait, and ask running ones to stop.
-- KEYS: the queue.  ARGV: clock, reason, ids.  Returns {how many running ones were asked anew, a letter per
-- job: its state, - for none}.
-- include: size_check clock states queue record partitions places lease lookup cancelling
local asked, letters = 0, {}
for i = 3, #ARGV do
  if work >= 2000 then break end    -- the rest is asked again
  local state, anew = cancel_job(KEYS[1], ARGV[i], ARGV[2])
  if anew then asked = asked + 1 end
  letters[#letters + 1] = letter_of(state)
end
finish()
return {asked, table.concat(letters)}
