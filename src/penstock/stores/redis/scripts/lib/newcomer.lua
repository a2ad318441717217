-- A new job that is not the usual one: what may keep it out, and its first facts.

-- Whether the job may be stored: n (new), c (closed), d (its key is held, and by whom).
local function verdict_on(queue, form, follows)
  if meta(queue).closed and not follows then return 'c' end
  if #form > 42 then
    local has = holder(queue, string.sub(form, 43))
    if has then return 'd', has end
  end
  return 'n'
end

local function first_facts(generation, form)
  local job = {
    generation = generation, priority = string.byte(form, 2) - 100, enqueued = now, place = generation,
    attempt = 0, lost = 0,
  }
  local delay, run_at, expires_in, expires_at, period, key = 0, NONE, NONE, NONE, NONE, ''
  if #form > 2 then
    delay, run_at, expires_in, expires_at, period = struct.unpack('<ddddd', form, 3)
    key = string.sub(form, 43)
  end
  local due = run_at ~= NONE and run_at or now + delay
  job.state = due > now and SCHEDULED or AVAILABLE
  job.run = (due > now or run_at ~= NONE) and due or now
  if expires_in ~= NONE then job.expires = now + expires_in end
  if expires_at ~= NONE then job.expires = math.min(job.expires or expires_at, expires_at) end
  if key ~= '' then job.unique = struct.pack('<d', period) .. key end
  return job
end

local function store_new(queue, id, form, generation, flags, tail)
  local job = first_facts(generation, form)
  job.tail_flags, job.tail = flags, tail
  if job.unique then hold_key(queue, id, job) end
  put(queue, id, job)
end
