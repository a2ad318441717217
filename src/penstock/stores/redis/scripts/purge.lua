-- Remove the oldest jobs of some states, never running ones.
-- KEYS: the queue.  ARGV: clock, limit, states (numbers, by commas).  Returns how many went, below zero if there
-- may be more: they had so many members that the rest shall go in another script.
-- include: clock states record queue lanes places listing
local limit, found = tonumber(ARGV[2]), {}
for state in string.gmatch(ARGV[3], '%d') do
  for _, one in ipairs(of_state(KEYS[1], tonumber(state), 2 ^ 53, limit, false)) do found[#found + 1] = one end
end
sort_by_age(found, false)
local gone = math.min(limit, #found)
for i = 1, gone do
  if work >= 2000 then
    gone = 1 - i
    break
  end
  local job = read(found[i][3])
  if job.lane then job = read(redis.call('HGET', KEYS[1] .. ':jobs', found[i][2])) end    -- its turn may have come
  take(KEYS[1], found[i][2], job)
  remove(KEYS[1], found[i][2], job)
end
finish()
return gone
