-- Replace the content of a queued job by that of a second job with the same unique key: unique_rules.replaced.
-- needs: clock states queue record partitions places

local EXTRA, INLINE = 16, 32    -- flags of a tail
local REPLACES_ARGUMENTS, REPLACES_RUN_AT = 1, 2
local TIMES = 5    -- the first fields of profiles.Extra that contain times

-- The parts of a tail: profile, optional fields (profiles.Extra, a msgpack array), payload.
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

local function replaceable(queue, id, generation)
  if redis.call('HEXISTS', queue .. ':held', id) == 1 then return false end
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record then return false end    -- the key has outlived its job
  local job = readable(queue, id, record)
  if job.generation ~= generation or ended_state(job.state) or job.state == SUSPENDED then return false end
  if not pcall(tail_parts, job.tail_flags, job.tail) then
    set_aside(queue, id, record, why_not('its arguments are cut off'))
    return false
  end
  return not (job.state == COLLECTING and batches().in_batch(job))
end

-- Number of bytes after the first byte of a msgpack value that is not an array, map or string, by the first byte.
local WIDTHS = {
  [202] = 4, [203] = 8, [204] = 1, [205] = 2, [206] = 4, [207] = 8, [208] = 1, [209] = 2, [210] = 4, [211] = 8,
}
-- Values with an explicit size: the width of the size, and what it counts (0 bytes, 1 values, 2 pairs of values).
local SIZED = {
  [196] = {1, 0}, [197] = {2, 0}, [198] = {4, 0}, [217] = {1, 0}, [218] = {2, 0}, [219] = {4, 0},
  [220] = {2, 1}, [221] = {4, 1}, [222] = {2, 2}, [223] = {4, 2},
}

-- The position after the msgpack value at `at`.
local function after_value(text, at)
  local byte = string.byte(text, at)
  local values = 0
  at = at + 1
  if byte >= 160 and byte < 192 then
    return at + byte - 160
  elseif byte >= 144 and byte < 160 then
    values = byte - 144
  elseif byte >= 128 and byte < 144 then
    values = 2 * (byte - 128)
  elseif SIZED[byte] then
    local width, kind = unpack(SIZED[byte])
    local size = struct.unpack('>I' .. width, text, at)
    at = at + width
    if kind == 0 then return at + size end
    values = kind * size
  else
    at = at + (WIDTHS[byte] or 0)
  end
  for _ = 1, values do at = after_value(text, at) end
  return at
end

-- The ten fields of profiles.Extra, as encoded bytes.
local FIELDS, PARTITION_AT, TENANT_AT = 10, 8, 9

local function fields_of(extra)
  local fields, at = {}, 2
  for i = 1, FIELDS do
    if i <= string.byte(extra) - 144 then
      local ends = after_value(extra, at)
      fields[i], at = string.sub(extra, at, ends - 1), ends
    else
      fields[i] = i == 1 and '\0' or '\192'
    end
  end
  return fields
end

-- Move a job from its partition, tenant and batch to those of the second job.
local function move(queue, id, job, wanted, state)
  local old, left = job.state, job.partition and terms_of(job).key
  take(queue, id, job)
  if job.partition then leave(queue, id, job) end
  job.partition, job.tenant, job.terms = wanted.partition, wanted.tenant, nil
  if job.batch and wanted.batch then job.batch = wanted.batch end
  if job.tenant and not meta(queue).fair then
    job.place = count_up(meta(queue), minted)
    become_fair(queue, job)
  end
  if state == SCHEDULED then
    job.state = SCHEDULED
    put(queue, id, job)
  elseif state or old == AVAILABLE or old == WAITING or old == COLLECTING then
    put_available(queue, id, job)
  else
    put(queue, id, job)
  end
  if left then advance(queue, left) end
end

-- sent: the tail of the second job; wanted: its decoded form; then its first state, due time and expiry.
local function replace_job(queue, id, replaces, sent, wanted, state, run, expires)
  local job = read(redis.call('HGET', queue .. ':jobs', id))
  local profile, extra, payload = tail_parts(job.tail_flags, job.tail)
  local _, new_extra, new_payload = tail_parts(string.byte(sent), string.sub(sent, 2))
  local fields, new_fields = fields_of(extra), fields_of(new_extra)
  local old = {state = job.state, expires = job.expires}
  local new_times = bit.band(replaces, REPLACES_RUN_AT) ~= 0
  local moves = false
  if bit.band(replaces, REPLACES_ARGUMENTS) ~= 0 then
    payload, fields[PARTITION_AT], fields[TENANT_AT] = new_payload, new_fields[PARTITION_AT], new_fields[TENANT_AT]
    moves = job.partition ~= wanted.partition or job.tenant ~= wanted.tenant
      or (job.batch and wanted.batch and job.batch ~= wanted.batch) or false
  end
  for i = 1, new_times and TIMES or 0 do fields[i] = new_fields[i] end
  extra = string.char(144 + FIELDS) .. table.concat(fields)
  local tail = profile .. struct.pack('<I4c0', #extra, extra) .. payload
  local tail_flags = bit.bor(job.tail_flags, EXTRA)
  local begins = new_times and (state == SCHEDULED or old.state == SCHEDULED or old.state == RETRYABLE)
  if moves then
    job.tail, job.tail_flags = tail, tail_flags
    if new_times and old.expires then redis.call('ZREM', queue .. ':expiring', order(job, id)) end
    if new_times then job.expires = expires end
    if begins then job.run = run end
    return move(queue, id, job, wanted, begins and state or nil)
  end
  if begins then
    take(queue, id, job)
    job.tail, job.tail_flags, job.run, job.expires = tail, tail_flags, run, expires
    if state == AVAILABLE then return put_available(queue, id, job) end
    job.state = state
    return put(queue, id, job)
  end
  job.tail, job.tail_flags = tail, tail_flags
  if new_times then    -- the job keeps its place
    job.expires = expires
    if old.expires then redis.call('ZREM', queue .. ':expiring', order(job, id)) end
    if expires then redis.call('ZADD', queue .. ':expiring', expires, order(job, id)) end
  end
  redis.call('HSET', queue .. ':jobs', id, write(job))
end
