-- List a page of the jobs of one queue, newest first.
-- KEYS: the queue.  ARGV: clock, before (a generation), limit, states (numbers, separated by commas; 7: running), text that
-- the leases of running jobs contain ('': any).
-- Returns 3 entries per job: id, record, lease or nothing.
-- include: clock states queue record partitions places listing
local before, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
for state in string.gmatch(ARGV[4], '%d+') do
  for _, one in ipairs(of_state(KEYS[1], tonumber(state), before, limit, true, ARGV[5])) do found[#found + 1] = one end
end
sort_by_age(found, true)
local answer = {}
for i = 1, math.min(limit, #found) do
  local _, id, record, held = unpack(found[i], 1, 4)
  answer[3 * i - 2] = id
  answer[3 * i - 1] = record or redis.call('HGET', KEYS[1] .. ':jobs', id)
  answer[3 * i] = held or false
end
return answer
