-- Pause periodic entries, or resume them; runs missed during a pause are not made up for.
-- KEYS: the queue.  ARGV: clock, paused (1 or 0), names.
-- Returns {how many have changed, each as it is then ('' : not there)}.
-- include: size_check clock periodic
local queue, paused, changed, answer = KEYS[1], tonumber(ARGV[2]), 0, {}
for i = 3, #ARGV do
  local entry, text = entry_of(queue, ARGV[i])
  if entry and entry.paused ~= paused then
    changed = changed + 1
    revise(entry)
    entry.paused = paused
    if paused == 0 then entry.watermark = math.max(entry.watermark, now) end
    text = keep_entry(queue, ARGV[i], entry)
  end
  answer[#answer + 1] = text or ''
end
return {changed, unpack(answer)}
