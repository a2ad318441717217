-- Remove signals and waits whose time is over, and find deliveries that nobody has confirmed.
-- KEYS: the signals of the namespace.  ARGV: clock, the most of each, the least age of such a delivery (ms).
-- Returns per delivery its number and the delivery.
-- include: clock states status_codes signals
local most, before, answer = tonumber(ARGV[2]), now - ARGV[3], {}
for _, box in ipairs(redis.call('ZRANGEBYSCORE', base .. ':over', '-inf', now, 'LIMIT', 0, most)) do forget_signal(box) end
for _, wait in ipairs(redis.call('ZRANGEBYSCORE', base .. ':waits/over', '-inf', now, 'LIMIT', 0, most)) do drop_wait(wait) end
local found = redis.call('HSCAN', base .. ':out', 0, 'COUNT', most)[2]
for i = 1, #found, 2 do
  local _, put_at = struct.unpack('<I4d', found[i + 1])
  if put_at <= before then
    answer[#answer + 1], answer[#answer + 2] = found[i], found[i + 1]
  end
end
return answer
