-- Remove stored signals.
-- KEYS: the signals of the namespace.  ARGV: clock, then per signal: name, key, id of the job that it is for ('': any).
-- Returns 1 per signal that was stored, else 0.
-- include: clock states signals
local answer = {}
for i = 2, #ARGV, 3 do
  local box = box_of(unpack(ARGV, i, i + 2))
  local text = redis.call('HGET', base, box)
  answer[#answer + 1] = 0
  if text then
    local _, keep_until = struct.unpack('<dd', text)
    forget_signal(box)
    if keep_until > now then answer[#answer] = 1 end
  end
end
return answer
