-- Remove signals and waits whose time is over, and find deliveries that nobody has confirmed.
-- KEYS: the signals of the namespace.  ARGV: clock, the most of each, the least age of such a delivery (ms), the cursor ('0'
-- at first), the most bytes of deliveries: the scan stops when it has found as many.
-- Returns the cursor from which to go on ('0': all were seen), and per delivery its number and the delivery.
-- include: clock states signals
local SCANNED = 8    -- about as many deliveries are read per step
local most, before, cursor, bytes = tonumber(ARGV[2]), now - ARGV[3], ARGV[4], tonumber(ARGV[5])
local answer = {''}
if cursor == '0' then
  for _, box in ipairs(redis.call('ZRANGEBYSCORE', base .. ':over', '-inf', now, 'LIMIT', 0, most)) do forget_signal(box) end
  for _, wait in ipairs(redis.call('ZRANGEBYSCORE', base .. ':waits/over', '-inf', now, 'LIMIT', 0, most)) do drop_wait(wait) end
end
repeat
  local found
  cursor, found = unpack(redis.call('HSCAN', base .. ':out', cursor, 'COUNT', SCANNED))
  for i = 1, #found, 2 do
    bytes, most = bytes - #found[i + 1], most - 1
    local _, put_at = struct.unpack('<I4d', found[i + 1])
    if put_at <= before then
      answer[#answer + 1], answer[#answer + 2] = found[i], found[i + 1]
    end
  end
until cursor == '0' or bytes <= 0 or most <= 0
answer[1] = cursor
return answer
