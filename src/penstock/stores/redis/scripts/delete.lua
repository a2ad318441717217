-- Remove jobs that are not running.
-- KEYS: the queue.  ARGV: clock, ids.  Returns a letter per job: its state before, - for none.
-- include: clock states queue record partitions places lease lookup
local letters = {}
for i = 2, #ARGV do
  if work >= 2000 then break end    -- the rest is asked again
  local state, job = look_at(KEYS[1], ARGV[i])
  letters[#letters + 1] = letter_of(state)
  if state and state ~= RUNNING and not (state == COLLECTING and batches().in_batch(job)) then
    take(KEYS[1], ARGV[i], job)
    remove(KEYS[1], ARGV[i], job)
  end
end
finish()
return table.concat(letters)
