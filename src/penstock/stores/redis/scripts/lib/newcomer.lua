-- A new job that is not the usual one: what may keep it out, and its first facts.

-- What a form says beyond queue and priority: times, and what ties the job to others (see record.lua).
local function read_form(form)
  local said = {delay = 0, run_at = NONE, expires_in = NONE, expires_at = NONE}
  if #form > 2 then
    local at
    said.delay, said.run_at, said.expires_in, said.expires_at, at = struct.unpack('<dddd', form, 3)
    for _, part in ipairs(TIES) do
      local text
      text, at = struct.unpack('<I2c0', form, at)
      if text ~= '' then said[part] = text end
    end
  end
  return said
end

-- Whether the job may be stored: n (new), c (closed), d (its key is held, and by whom).
local function verdict_on(queue, form, follows)
  if meta(queue).closed and not follows then return 'c' end
  local unique = read_form(form).unique
  if unique then
    local has = holder(queue, string.sub(unique, 9))
    if has then return 'd', has end
  end
  return 'n'
end

local function first_facts(generation, form)
  local said = read_form(form)
  local job = {
    generation = generation, priority = string.byte(form, 2) - 100, enqueued = now, place = generation,
    attempt = 0, lost = 0,
  }
  for _, part in ipairs(TIES) do job[part] = said[part] end
  local due = said.run_at ~= NONE and said.run_at or now + said.delay
  job.state = due > now and SCHEDULED or AVAILABLE
  job.run = (due > now or said.run_at ~= NONE) and due or now
  if said.expires_in ~= NONE then job.expires = now + said.expires_in end
  if said.expires_at ~= NONE then job.expires = math.min(job.expires or said.expires_at, said.expires_at) end
  return job
end

local function store_new(queue, id, form, generation, flags, tail)
  local job = first_facts(generation, form)
  job.tail_flags, job.tail = flags, tail
  if job.unique then hold_key(queue, id, job) end
  minted = math.max(minted, generation)
  if job.group and job.state == AVAILABLE then return groups().join(queue, id, job) end
  put(queue, id, job)
end
