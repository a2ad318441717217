-- Append entries to a log, and remove the oldest ones.
-- KEYS: the log, a list: number, time, and the body of each entry, newest first.  ARGV: clock, the most entries, entries.
-- Returns the number of the last entry.
-- include: clock
local log, last = KEYS[1], 0
local newest = redis.call('LINDEX', log, 0)
if newest and #newest >= 16 then last = struct.unpack('<d', newest) end
for i = 3, #ARGV do
  last = last + 1
  redis.call('LPUSH', log, struct.pack('<dd', last, now) .. ARGV[i])
end
redis.call('LTRIM', log, 0, tonumber(ARGV[2]) - 1)
return string.format('%.0f', last)
