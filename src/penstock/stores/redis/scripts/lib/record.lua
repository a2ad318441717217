-- A job as bytes, as records.py draws it: flags, generation, priority, what has become of it (if anything
-- has), and a tail that no script looks into but for its profile.

local TAIL_FLAGS = 48
local TIES = {'unique', 'lane', 'turn', 'group'}    -- what ties a job to others, as records.py writes it
local PARTS = {'errors', 'result', 'progress', 'checkpoint', 'reason', unpack(TIES)}

local function some(number)
  if number ~= NONE then return number end
end

local function read(record)
  local flags, generation, priority = struct.unpack('>BI7B', record)
  local list = bit.band(flags, HIGH)
  local job = {
    state = state_of(flags), generation = generation, priority = priority - 128,
    fresh = list == FRESH, moved = list == MOVED, tail_flags = bit.band(flags, TAIL_FLAGS),
  }
  if bit.band(flags, LONG) == 0 then
    local at = ms_of(generation)
    job.enqueued, job.run, job.place, job.attempt, job.lost = at, at, generation, 0, 0
    job.tail = string.sub(record, 10)
    return job
  end
  local size, expires, fetched, ended, has
  size, job.enqueued, job.run, job.place, expires, fetched, ended, job.attempt, job.lost, has =
    struct.unpack('<I4ddddddI4I4I2', record, 10)
  job.expires, job.fetched, job.ended = some(expires), some(fetched), some(ended)
  job.asked, job.admitted = has >= ASKED_TO_STOP, bit.band(has, ADMITTED) ~= 0
  local at = 72
  for i, part in ipairs(PARTS) do
    if bit.band(has, 2 ^ (i - 1)) ~= 0 then
      job[part] = struct.unpack('<I4c0', record, at)
      at = at + 4 + #job[part]
    end
  end
  job.tail = string.sub(record, 10 + size)
  return job
end

local function write(job)
  local has, parts = (job.asked and ASKED_TO_STOP or 0) + (job.admitted and ADMITTED or 0), {}
  for i, part in ipairs(PARTS) do
    if job[part] then
      has = has + 2 ^ (i - 1)
      parts[#parts + 1] = struct.pack('<I4c0', #job[part], job[part])
    end
  end
  local list = job.state >= 8 and HIGH or job.fresh and FRESH or job.moved and MOVED or 0
  local flags = job.state % 8 + LONG + job.tail_flags + list
  parts = table.concat(parts)
  return struct.pack('>BI7B', flags, job.generation, job.priority + 128)
    .. struct.pack('<I4ddddddI4I4I2', 62 + #parts, job.enqueued, job.run, job.place, job.expires or NONE,
      job.fetched or NONE, job.ended or NONE, job.attempt, job.lost, has)
    .. parts .. job.tail
end

-- How long a cancelled job of this kind stays, and its task: the two facts of a profile that scripts need.
local function profile(queue, job)
  local known
  if job.tail_flags >= 32 then
    known = struct.unpack('<I2c0', job.tail)
  else
    known = redis.call('HGET', queue .. ':profiles', string.sub(job.tail, 1, 4))
  end
  local keep, task = struct.unpack('<dI2c0', known)
  return keep, task
end

local function order(job, id)
  return struct.pack('>I7', job.generation) .. id
end

local function add_error(job, error, most)
  local errors = (job.errors or '') .. struct.pack('<I4c0', #error, error)
  local starts, at = {}, 1
  while at <= #errors do
    starts[#starts + 1] = at
    at = at + 4 + struct.unpack('<I4', errors, at)
  end
  job.errors = string.sub(errors, starts[math.max(1, #starts - most + 1)])
end

local function grip(generation, token)
  return struct.pack('>I7B', generation, #token) .. token
end

local function read_held(held)
  local generation, token_size = struct.unpack('>I7B', held)
  local lease = {generation = generation, token = string.sub(held, 9, 8 + token_size)}
  lease.fetched, lease.flags, lease.worker = struct.unpack('<dBI2c0', held, 9 + token_size)
  local at = 9 + token_size + 8 + 1 + 2 + #lease.worker
  if at <= #held then lease.reason = string.sub(held, at) end
  return lease
end

local function write_held(lease)
  return grip(lease.generation, lease.token)
    .. struct.pack('<dBI2c0', lease.fetched, lease.flags, #lease.worker, lease.worker) .. (lease.reason or '')
end
