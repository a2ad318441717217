-- List the collecting batches of a queue, in the order in which they are due.
-- KEYS: the queue.  ARGV: clock, limit.
-- Returns 4 entries per batch: name (task, zero byte, batch key), number of members, when the first member joined, when
-- the batch is due ('' : only when it is full).
-- include: clock
local queue, limit, answer = KEYS[1], tonumber(ARGV[2]), {}

local function show(name, due)
  local known = redis.call('HGET', queue .. ':batches', name)
  answer[#answer + 1] = name
  answer[#answer + 1] = redis.call('ZCARD', queue .. ':batch/' .. name)
  answer[#answer + 1] = string.format('%.0f', #known == 34 and struct.unpack('<d', known, 27) or now)
  answer[#answer + 1] = due and string.format('%.0f', due) or ''
end

if limit <= 0 or redis.call('EXISTS', queue .. ':batches') == 0 then return answer end
local names = redis.call('HKEYS', queue .. ':batches')
local found = {}
for i, name in ipairs(names) do
  local due = redis.call('ZSCORE', queue .. ':due', string.rep('\255', 7) .. name)
  found[i] = {due and tonumber(due) or math.huge, name}
end
table.sort(found, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
for i = 1, math.min(limit, #found) do show(found[i][2], found[i][1] < math.huge and found[i][1]) end
return answer
