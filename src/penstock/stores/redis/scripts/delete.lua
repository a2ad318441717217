-- Remove jobs.
-- KEYS: the queue.  ARGV: clock, whether to remove running jobs, too (1, 0), whether unique keys stay held for their
-- period (1, 0), ids.  Returns one code per job: its state before, "-" if the job does not exist. Fewer codes than ids:
-- call again for the rest.
-- include: clock states queue record partitions places lease lookup removing
local queue, with_running, keeps_keys, codes = KEYS[1], ARGV[2] == '1', ARGV[3] == '1', {}

for i = 4, #ARGV do
  if work >= 2000 then break end    -- the caller asks again for the rest
  codes[#codes + 1] = status_code(remove_now(queue, ARGV[i], with_running, keeps_keys))
end
count_ended(queue)
finish()
if room_was_made and not made_ready[queue] then wake_for_room(queue) end
return table.concat(codes)
