-- Jobs that are not plain: insert one, replace the content of a queued one, and move one from another queue.
-- needs: clock states queue profiles record partitions places

-- ── replacing the content of a queued job by that of a second job with the same unique key: changes.replaced ──

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

-- ── inserting: whether a job may be stored, and its first fields ──

-- Decode a form behind the number of the queue and the priority: times, and shared keys (see record.lua).
local function read_form(form)
  local fields = {delay = 0, run_at = NONE, expires_in = NONE, expires_at = NONE}
  if #form > 2 then
    local at
    fields.delay, fields.run_at, fields.expires_in, fields.expires_at, at = struct.unpack('<dddd', form, 3)
    for _, part in ipairs(SHARED_KEYS) do
      local text
      text, at = struct.unpack('<I2c0', form, at)
      if text ~= '' then fields[part] = text end
    end
  end
  return fields
end

-- Compute the first state of a job, its due time and its expiry.
local function first_times(fields)
  local due = fields.run_at ~= NONE and fields.run_at or now + fields.delay
  local state = due > now and SCHEDULED or AVAILABLE
  local run = (due > now or fields.run_at ~= NONE) and due or now
  local expires
  if fields.expires_in ~= NONE then expires = now + fields.expires_in end
  if fields.expires_at ~= NONE then expires = math.min(expires or fields.expires_at, fields.expires_at) end
  return state, run, expires
end

-- Replace the content of the holder of the unique key by that of this job.
local function replace_holder(queue, id, form, tail)
  local fields = read_form(form)
  local _, _, replaces = rule_of(fields.unique)
  replace_job(queue, id, replaces, tail, fields, first_times(fields))
end

-- Check whether a job may be stored. Returns NEW; CLOSED; DUPLICATE or REPLACED and the id of the holder of its unique
-- key; FULL and the refusal (`count_new` in limits.lua).
local function enqueue_status(queue, form, follows)
  if meta(queue).closed and not follows then return CLOSED end
  local unique = read_form(form).unique
  if unique then
    local _, _, replaces, key = rule_of(unique)
    local has, generation = holder(queue, key)
    if has and replaces ~= 0 then
      if replaceable(queue, has, generation) then return REPLACED, has end
      has = holder(queue, key)    -- nil if the holder's record was unreadable
    end
    if has then return DUPLICATE, has end
  end
  if meta(queue).limited and not follows then
    local refusal = limiting().count_new(queue, meta(queue))
    if refusal then return FULL, refusal end
  end
  return NEW
end

local function first_facts(generation, form)
  local fields = read_form(form)
  local job = {
    generation = generation, priority = string.byte(form, 2) - 100, enqueued = now, place = generation,
    attempt = 0, lost = 0, at_tail = true,
  }
  for _, part in ipairs(SHARED_KEYS) do job[part] = fields[part] end
  job.state, job.run, job.expires = first_times(fields)
  return job
end

-- As `ask_for_keys`, for a job that this script may store; profile: as the caller has sent it.
local function ask_for_keys_of(queue, form, profile)
  local job = first_facts(0, form)
  job.tail_flags, job.tail = 32, struct.pack('<I2c0', #profile, profile)
  ask_for_keys(queue, job)
end

-- carried: fields of the job that it brings along, or nothing.
local function store_new(queue, id, form, generation, flags, tail, carried)
  local job = first_facts(generation, form)
  for name, value in pairs(carried or {}) do job[name] = value end
  job.tail_flags, job.tail = flags, tail
  ask_for_keys(queue, job)
  if job.unique then shift_key(queue, id, job, 0, QUEUED_PHASE) end
  if job.tenant then become_fair(queue, job) end
  minted = math.max(minted, generation)
  if job.batch and job.state == AVAILABLE then return batches().join(queue, id, job) end
  put(queue, id, job)
end

-- ── moving: a queued job changes only while it is as an operator has seen it ──

-- The job, if it is queued and as it was seen (changes.is_as_seen); else nothing. seen: generation, state, due time,
-- attempts, losses, and the SHA-1 of the payload in hexadecimal.
local function job_as_seen(queue, id, seen)
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record or redis.call('HEXISTS', queue .. ':held', id) == 1 then return nil end
  local job, aside = readable(queue, id, record)
  if aside or ended_state(job.state) or job.state == SUSPENDED then return nil end
  if job.state == COLLECTING and batches().in_batch(job) then return nil end
  local generation, state, run, attempt, lost, payload = struct.unpack('>I7B<dI4I4c40', seen)
  if job.generation ~= generation or job.state ~= state or job.run ~= run then return nil end
  if job.attempt ~= attempt or job.lost ~= lost then return nil end
  local ok, _, _, text = pcall(tail_parts, job.tail_flags, job.tail)
  if ok and redis.sha1hex(text) == payload then return job end
end

-- Store a job that comes from another queue. carried: attempts, losses, errors as in a record, whether there is a
-- checkpoint (1, 0), and the checkpoint. profile_at: where ARGV has its profile. Returns the highest generation.
local function store_moved(queue, id, form, tail, carried, floor, profile_at)
  local attempt, lost, errors, has, from = struct.unpack('<I4I4I4c0B', carried)
  local brought = {attempt = attempt, lost = lost}
  if errors ~= '' then brought.errors = errors end
  if has == 1 then brought.checkpoint = string.sub(carried, from) end
  local flags, stored = tail_of(tail, profile_keeper(profile_at, 1)(queue, string.sub(tail, 2, 5)))
  floor = count_up(meta(queue), floor)
  meta(queue).enqueued = meta(queue).enqueued + 1
  store_new(queue, id, form, floor, flags, stored, brought)
  return math.max(floor, minted, meta(queue).generation)
end
