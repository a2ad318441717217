-- Give queued jobs a new time.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), delay, run_at ('' : now + delay), ids.
-- Returns {0, one code per job: its state before, "-" if the job does not exist, the highest generation}. Fewer codes
-- than ids: call again for the rest.
-- include: size_check clock states state_codes queue record partitions places lease lookup
local due, codes = ARGV[4] == '' and now + tonumber(ARGV[3]) or tonumber(ARGV[4]), {}
minted = tonumber(ARGV[2])
for i = 5, #ARGV do
  if work >= 2000 then break end    -- the caller asks again for the rest
  local queue, id = KEYS[1], ARGV[i]
  local state, job = look_at(queue, id)
  codes[#codes + 1] = status_code(state)
  if state == SCHEDULED or state == AVAILABLE or state == RETRYABLE or state == WAITING
    or (state == COLLECTING and not batches().in_batch(job)) then
    take(queue, id, job)
    job.run = due
    if due <= now then
      put_available(queue, id, job)
    else
      job.state = SCHEDULED
      put(queue, id, job)
    end
  end
end
finish()
return {0, table.concat(codes), string.format('%.0f', minted)}
