-- A queued job is given what a second one of its unique key asks for: holding.replaced.

local EXTRA, INLINE = 16, 32    -- flags of a tail
local REPLACES_ARGUMENTS, REPLACES_RUN_AT = 1, 2
local TIMES = 5    -- how many of the first fields of what only some jobs have (records.py) say when

local function replaceable(queue, id, generation)
  if redis.call('HEXISTS', queue .. ':held', id) == 1 then return false end
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record then return false end    -- the key has outlived its job
  local job = read(record)
  if job.generation ~= generation or ended_state(job.state) then return false end
  return not (job.state == GROUPED and groups().in_batch(job))
end

-- The parts of a tail: profile, what only some jobs have (a msgpack array), payload.
local function tail_parts(flags, tail)
  local at = 5
  if bit.band(flags, INLINE) ~= 0 then at = 3 + struct.unpack('<I2', tail) end
  local profile, extra = string.sub(tail, 1, at - 1), '\144'
  if bit.band(flags, EXTRA) ~= 0 then
    extra = struct.unpack('<I4c0', tail, at)
    at = at + 4 + #extra
  end
  return profile, extra, string.sub(tail, at)
end

-- Where the msgpack value after this one begins: only what times and texts are written with.
local function after_value(text, at)
  local byte = string.byte(text, at)
  if byte < 128 or byte >= 224 or (byte >= 192 and byte <= 195) then return at + 1 end
  if byte == 202 or byte == 206 or byte == 210 then return at + 5 end
  if byte == 203 or byte == 207 or byte == 211 then return at + 9 end
  if byte == 204 or byte == 208 then return at + 2 end
  return at + 3    -- 205, 209
end

-- The fields of an array of less than 16: the first few, the others, how many these are.
local function split(extra, n)
  local count, at = string.byte(extra) - 144, 2
  for _ = 1, math.min(n, count) do at = after_value(extra, at) end
  local first = string.sub(extra, 2, at - 1) .. string.rep('\192', n - count)
  return first, string.sub(extra, at), math.max(0, count - n)
end

-- The times of the one, all else of the other.
local function with_times(extra, new)
  local times = split(new, TIMES)
  local _, rest, others = split(extra, TIMES)
  return string.char(144 + TIMES + others) .. times .. rest
end

-- What is sent is the tail of the second job; then where that would begin, and its times.
local function replace_job(queue, id, replaces, sent, state, run, expires)
  local job = read(redis.call('HGET', queue .. ':jobs', id))
  local profile, extra, payload = tail_parts(job.tail_flags, job.tail)
  local _, new_extra, new_payload = tail_parts(string.byte(sent), string.sub(sent, 2))
  local old = {state = job.state, expires = job.expires}
  local new_times = bit.band(replaces, REPLACES_RUN_AT) ~= 0
  if bit.band(replaces, REPLACES_ARGUMENTS) ~= 0 then payload = new_payload end
  if new_times then extra = with_times(extra, new_extra) end
  local tail = profile .. struct.pack('<I4c0', #extra, extra) .. payload
  local tail_flags = bit.bor(job.tail_flags, EXTRA)
  if new_times and (state == SCHEDULED or old.state == SCHEDULED or old.state == RETRYABLE) then
    take(queue, id, job)
    job.tail, job.tail_flags, job.run, job.expires = tail, tail_flags, run, expires
    if state == AVAILABLE then return put_available(queue, id, job) end
    job.state = state
    return put(queue, id, job)
  end
  job.tail, job.tail_flags = tail, tail_flags
  if new_times then    -- it stays where it stands
    job.expires = expires
    if old.expires then redis.call('ZREM', queue .. ':expiring', order(job, id)) end
    if expires then redis.call('ZADD', queue .. ':expiring', expires, order(job, id)) end
  end
  redis.call('HSET', queue .. ':jobs', id, write(job))
end
