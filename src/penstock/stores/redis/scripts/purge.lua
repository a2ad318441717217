-- Remove the oldest jobs in some states, never running ones.
-- KEYS: the queue.  ARGV: clock, limit, states (numbers, separated by commas).  Returns how many jobs were removed; a
-- negative number if the caller must call again, because removing the members of batches has taken long enough.
-- include: clock states queue sound record partitions places listing
local limit, found = tonumber(ARGV[2]), {}
for state in string.gmatch(ARGV[3], '%d+') do
  for _, one in ipairs(oldest_of(KEYS[1], tonumber(state), limit)) do found[#found + 1] = one end
end
sort_by_age(found, false)
local gone = math.min(limit, #found)
for i = 1, gone do
  if members_processed >= 2000 then
    gone = 1 - i
    break
  end
  local id = found[i][2]
  local record = redis.call('HGET', KEYS[1] .. ':jobs', id)    -- read again: its partition may have admitted the job
  if record then
    local job = readable(KEYS[1], id, record)
    take(KEYS[1], id, job)
    remove(KEYS[1], id, job)
  end
end
finish()
return gone
