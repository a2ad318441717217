-- List the entries of a log, newest first.
-- KEYS: the log.  ARGV: clock, number below which to begin ('': the newest), limit.  Returns the entries, and one more if
-- there are older ones.
-- include: clock
local log, before = KEYS[1], tonumber(ARGV[2])
local first = 0
if before then
  local newest = redis.call('LINDEX', log, 0)
  if not newest or #newest < 16 then return {} end
  first = math.max(0, struct.unpack('<d', newest) - before + 1)    -- numbers rise by 1
end
return redis.call('LRANGE', log, string.format('%.0f', first), string.format('%.0f', first + tonumber(ARGV[3])))
