-- Insert a job that is not plain: check whether it may be stored, and set its first fields.
-- needs: clock states status_codes queue record partitions places replacing

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
-- key; FULL and the answer of `full` (limits.lua).
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
    local no_room = limiting().full(queue, meta(queue))
    if no_room then return FULL, no_room end
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

-- carried: fields of the job that it brings along, or nothing.
local function store_new(queue, id, form, generation, flags, tail, carried)
  local job = first_facts(generation, form)
  for name, value in pairs(carried or {}) do job[name] = value end
  job.tail_flags, job.tail = flags, tail
  if job.unique then shift_key(queue, id, job, 0, QUEUED_PHASE) end
  if job.tenant then become_fair(queue, job) end
  minted = math.max(minted, generation)
  if job.batch and job.state == AVAILABLE then return batches().join(queue, id, job) end
  put(queue, id, job)
end
