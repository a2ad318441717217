-- Remove jobs that are not running.
-- KEYS: the queue.  ARGV: clock, ids.  Returns one code per job: its state before, "-" if the job does not exist. Fewer
-- codes than ids: call again for the rest.
-- include: clock states queue record partitions places lease lookup
local codes = {}
for i = 2, #ARGV do
  if work >= 2000 then break end    -- the caller asks again for the rest
  local state, job = look_at(KEYS[1], ARGV[i])
  codes[#codes + 1] = status_code(state)
  if state and state ~= RUNNING and not (state == COLLECTING and batches().in_batch(job)) then
    take(KEYS[1], ARGV[i], job)
    remove(KEYS[1], ARGV[i], job)
  end
end
finish()
return table.concat(codes)
