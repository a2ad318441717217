-- Change a queue's switches.
-- KEYS: the queue.  ARGV: clock, paused, closed (each 1, 0 or '' : as it is).
-- Returns {1 if anything changed, 1 if the queue was new}.
-- include: room clock states record queue lanes places
local m = meta(KEYS[1])
local changed = 0
for i, name in ipairs({'paused', 'closed'}) do
  local wanted = ARGV[i + 1]
  if wanted ~= '' and (wanted == '1') ~= m[name] then
    changed = 1
    redis.call('HSET', KEYS[1] .. ':meta', name, wanted)
  end
end
if m.new then
  count_up(m)
  save()
end
return {changed, m.new and 1 or 0}
