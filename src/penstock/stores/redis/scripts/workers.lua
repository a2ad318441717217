-- Who announced itself, and those who have been silent for too long; with "prune" up to so many of these go.
-- KEYS: the workers.  ARGV: clock, silence (ms), how many to prune.
-- Returns {how many went, then what each of the others says}.
-- include: clock
local answer, silent = {0}, {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local seen = struct.unpack('<d', all[i + 1])
  if now - seen <= tonumber(ARGV[2]) then
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
