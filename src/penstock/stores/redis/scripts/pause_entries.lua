-- Pause or resume periodic entries; runs missed during a pause are not enqueued.
-- KEYS: the queue.  ARGV: clock, paused (1 or 0), names.
-- Returns {number of changed entries, each entry after the change ('' : it does not exist)}.
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
