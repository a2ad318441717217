-- List workers, and remove those that have not announced themselves for too long.
-- KEYS: the workers.  ARGV: clock, longest silence (ms), the most workers to remove.
-- Returns {number of removed workers, then 2 entries per other worker: id, announcement}.
-- include: clock
local answer, silent = {0}, {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local seen = #all[i + 1] >= 8 and struct.unpack('<d', all[i + 1]) or -1
  if not (seen > 0 and seen < 2 ^ 53) then    -- another program has overwritten it: listed until it is pruned
    seen = ARGV[3] == '0' and now or 0
    all[i + 1] = struct.pack('<d', now) .. all[i + 1]
  end
  if now - seen <= tonumber(ARGV[2]) then
    answer[#answer + 1] = all[i]
    answer[#answer + 1] = all[i + 1]
  else
    silent[#silent + 1] = {seen, all[i]}
  end
end
table.sort(silent, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
for i = 1, math.min(#silent, tonumber(ARGV[3])) do
  redis.call('HDEL', KEYS[1], silent[i][2])
  answer[1] = answer[1] + 1
end
return answer
