-- Take from a quota.
-- KEYS: the quota, a string: how much was taken in the window, and when that ends.  ARGV: clock, amount, limit, window (ms).
-- Returns {how much was taken, ms to the end of the window}.
-- include: clock
local amount, limit, window = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local used, ends = 0, 0
local stored = redis.call('GET', KEYS[1])
if stored and #stored == 16 then used, ends = struct.unpack('<dd', stored) end
if not (now < ends and ends <= now + window) then used, ends = 0, now + window end
local taken = math.max(0, math.min(amount, limit - used))
local SPARE = 60000    -- the clock of expiry may differ from that of the script
redis.call('SET', KEYS[1], struct.pack('<dd', used + taken, ends), 'PX', string.format('%.0f', ends - now + SPARE))
return {taken, string.format('%.0f', ends - now)}
