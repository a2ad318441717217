-- Remove jobs that are not running.
-- KEYS: the queue.  ARGV: clock, ids.  Returns one code per job: its state before, "-" if the job does not exist. Fewer
-- codes than ids: call again for the rest.
-- include: clock states queue record partitions places lease lookup
local letters = {}
for i = 2, #ARGV do
  if work >= 2000 then break end    -- the caller asks again for the rest
  local state, job = look_at(KEYS[1], ARGV[i])
  letters[#letters + 1] = letter_of(state)
  if state and state ~= RUNNING and not (state == COLLECTING and batches().in_batch(job)) then
    take(KEYS[1], ARGV[i], job)
    remove(KEYS[1], ARGV[i], job)
  end
end
finish()
return table.concat(letters)
