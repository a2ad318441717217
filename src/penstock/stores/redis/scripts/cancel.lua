-- Cancel queued jobs, and ask running jobs to stop.
-- KEYS: the queue.  ARGV: clock, reason, ids.  Returns {number of running jobs that were asked now, one code per job:
-- its state, "-" if the job does not exist}. Fewer codes than ids: call again for the rest.
-- include: size_check clock states queue sound leases record partitions places one_job
local asked, codes = 0, {}
for i = 3, #ARGV do
  if members_processed >= 2000 then break end    -- the caller asks again for the rest
  local state, newly_asked = cancel_job(KEYS[1], ARGV[i], ARGV[2])
  if newly_asked then asked = asked + 1 end
  codes[#codes + 1] = status_code(state)
end
finish()
return {asked, table.concat(codes)}
