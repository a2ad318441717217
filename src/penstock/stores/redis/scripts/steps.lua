-- Steps: read a part of what a job remembers.
-- KEYS: the queue.  ARGV: clock, generation of the job, the most bytes of a value ('': any), cursor ('': the steps whose
-- names follow), fields.
-- Returns {the next cursor ('0' at the end), then 3 entries per step: its field, the stored step as in lib/steps.lua, the
-- bytes of its value if they were left out, else 0}.
-- include: clock states record steps
local steps, most, cursor = KEYS[1] .. ':steps/' .. ARGV[2], tonumber(ARGV[3]), ARGV[4]
local answer, found = {'0'}, {}
if cursor == '' then
  for i = 5, #ARGV do
    found[#found + 1] = ARGV[i]
    found[#found + 1] = redis.call('HGET', steps, ARGV[i])
  end
else
  local page = redis.call('HSCAN', steps, cursor, 'MATCH', '=*', 'COUNT', 250)
  answer[1], found = page[1], page[2]
end
for i = 1, #found, 2 do
  local text, size = found[i + 1], 0
  if text then
    local head = #text    -- of a step that cannot be read
    if #text > STEP_HEAD then
      local _, _, n, k, d = struct.unpack(STEP_FORMAT, text)
      head = STEP_HEAD + n + k + d + 1    -- with the "=" or "?" before the value
    end
    if most and #text - head > most then
      size = #text - head
      text = string.sub(text, 1, head)
    end
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = text
    answer[#answer + 1] = size
  end
end
return answer
