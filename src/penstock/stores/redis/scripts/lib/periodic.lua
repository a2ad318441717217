-- Periodic entries: a hash per queue, name → revision, watermark, counts of enqueued and skipped jobs, paused,
-- the schedule, the id of the newest job ('' if none), and the NewEntry (msgpack).
-- needs: clock

local function read_entry(text)
  local entry, at = {}, nil
  entry.revision, entry.watermark, entry.enqueued, entry.skipped, entry.paused, entry.schedule, entry.last, at =
    struct.unpack('<ddddBI2c0I2c0', text)
  entry.spec = string.sub(text, at)
  return entry
end

local function entry_of(queue, name)
  local text = redis.call('HGET', queue .. ':periodic', name)
  if not text then return nil end
  local ok, entry = pcall(read_entry, text)
  return ok and entry or nil, text    -- an unreadable entry counts as missing
end

local function keep_entry(queue, name, entry)
  local text = struct.pack('<ddddBI2c0I2c0', entry.revision, entry.watermark, entry.enqueued, entry.skipped,
    entry.paused, #entry.schedule, entry.schedule, #entry.last, entry.last) .. entry.spec
  redis.call('HSET', queue .. ':periodic', name, text)
  return text
end

local function revise(entry)
  entry.revision = math.max(entry.revision + 1, now)
end
