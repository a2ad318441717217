-- Store periodic entries.
-- KEYS: the queue.  ARGV: clock, then per entry: name, schedule, the NewEntry (msgpack).
-- Returns {number of new or changed entries, each entry after the change}.
-- include: clock states queue sound periodic
local queue, changed, answer = KEYS[1], 0, {}
for i = 2, #ARGV, 3 do
  local name, schedule, spec = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local entry, text = entry_of(queue, name)
  if not entry or entry.spec ~= spec then
    changed = changed + 1
    if not entry then
      entry = {revision = now, watermark = now, enqueued = 0, skipped = 0, paused = 0, last = ''}
    else
      revise(entry)
      if entry.schedule ~= schedule then entry.watermark = math.max(entry.watermark, now) end
    end
    entry.schedule, entry.spec = schedule, spec
    text = keep_entry(queue, name, entry)
  end
  answer[#answer + 1] = text
end
local m = meta(queue)
if m.new then
  count_up(m)
  save()
end
return {changed, unpack(answer)}
