-- Encode and decode job records, in the layout of records.py: flags, generation, priority, details (only in long
-- records), and a tail of which scripts read only the profile.
-- needs: clock states

local TAIL_FLAGS = 48
-- Keys that a job shares with other jobs, as script_arguments.py writes them.
local SHARED_KEYS = {'unique', 'partition', 'tenant', 'batch', 'flow'}
local PARTS = {'errors', 'result', 'progress', 'checkpoint', 'reason', unpack(SHARED_KEYS)}

local function number_or_nil(number)
  if number ~= NONE then return number end
end

-- Whether this is the record of a plain job: enqueued, available, and without options.
local function is_plain(record)
  return #record >= 13 and bit.band(string.byte(record), PLAIN_MASK) == PLAIN
end

-- The least size (bytes) of each.
local LEAST_SIZE = {unique = 10, partition = 17, tenant = 2, batch = 20, flow = 5}

-- Raise an error if the decoded fields are inconsistent.
local function check(job, size, at)
  local sum = job.enqueued + job.run + job.place + (job.expires or 0)
  if at ~= 10 + size or not (math.abs(sum) < 2 ^ 60) then error('its parts do not fit') end
  for part, least in pairs(LEAST_SIZE) do
    if job[part] and #job[part] < least then error('its ' .. part .. ' is cut off') end
  end
  if job.batch and #job.batch < 20 + struct.unpack('<I2', job.batch, 19) then error('its batch key is cut off') end
  if (job.state == WAITING and not job.partition) or (job.state == COLLECTING and not job.batch) then
    error('what it waits for is gone')
  end
end

-- Decode a record; raises an error for anything else.
local function read(record)
  local flags, generation, priority = struct.unpack('>BI7B', record)
  local list = bit.band(flags, HIGH)
  local job = {
    state = state_of(flags), generation = generation, priority = priority - 128,
    fresh = list == FRESH, moved = list == MOVED, tail_flags = bit.band(flags, TAIL_FLAGS),
  }
  if bit.band(flags, LONG) == 0 then
    if not is_plain(record) then error('it is none of ours') end
    local at = ms_of(generation)
    job.enqueued, job.run, job.place, job.attempt, job.lost = at, at, generation, 0, 0
    job.tail = string.sub(record, 10)
    return job
  end
  local size, expires, fetched, ended, has
  size, job.enqueued, job.run, job.place, expires, fetched, ended, job.attempt, job.lost, has =
    struct.unpack('<I4ddddddI4I4I2', record, 10)
  job.expires, job.fetched, job.ended =
    number_or_nil(expires), number_or_nil(fetched), number_or_nil(ended)
  job.asked, job.admitted = has >= ASKED_TO_STOP, bit.band(has, ADMITTED) ~= 0
  job.steps = bit.band(has, HAS_STEPS) ~= 0
  local at = 72
  for i, part in ipairs(PARTS) do
    if bit.band(has, 2 ^ (i - 1)) ~= 0 then
      job[part] = struct.unpack('<I4c0', record, at)
      at = at + 4 + #job[part]
    end
  end
  check(job, size, at)
  job.tail = string.sub(record, 10 + size)
  if #job.tail < 4 then error('its tail is gone') end
  return job
end

-- The cause to report for an unreadable record.
local function why_not(text)
  return 'the stored bytes are not the record of a job (' .. string.gsub(tostring(text), '^[^ ]*:%d+: ', '') .. ')'
end

local set_aside    -- defined in places.lua

-- Decode a record. If it cannot be read, the job is set aside: returns its stand-in, which is dead, and true.
local function readable(queue, id, record, taken)
  local ok, job = pcall(read, record)
  if ok then return job end
  return set_aside(queue, id, record, why_not(job), taken), true
end

local function write(job)
  local has, parts = (job.asked and ASKED_TO_STOP or 0) + (job.admitted and ADMITTED or 0), {}
  if job.steps then has = has + HAS_STEPS end
  for i, part in ipairs(PARTS) do
    if job[part] then
      has = has + 2 ^ (i - 1)
      parts[#parts + 1] = struct.pack('<I4c0', #job[part], job[part])
    end
  end
  local list = job.state >= WAITING and HIGH or job.fresh and FRESH or job.moved and MOVED or 0
  local flags = job.state % 8 + LONG + job.tail_flags + list
  parts = table.concat(parts)
  return struct.pack('>BI7B', flags, job.generation, job.priority + 128)
    .. struct.pack('<I4ddddddI4I4I2', 62 + #parts, job.enqueued, job.run, job.place, job.expires or NONE,
      job.fetched or NONE, job.ended or NONE, job.attempt, job.lost, has)
    .. parts .. job.tail
end

local function profile_in(queue, job)
  local known
  if job.tail_flags >= 32 then
    known = struct.unpack('<I2c0', job.tail)
  else
    known = redis.call('HGET', queue .. ':profiles', string.sub(job.tail, 1, 4))
  end
  local keep, task, rest = struct.unpack('<dI2c0', known)
  return keep, task, string.sub(known, rest)
end

-- The retention of a cancelled job, the task, and the other facts of a profile. Defaults if the profile is missing:
-- reading such a job sets it aside.
local function profile(queue, job)
  local ok, keep, task, rest = pcall(profile_in, queue, job)
  if ok then return keep, task, rest end
  return 600000, '', ''
end

-- In the steps of a job: the ids of the flows that it waits for and that have not ended, each after its size.
local OPEN_FLOWS = 'f'

-- The key of the steps of a job (steps.lua).
local function steps_of(queue, job)
  return string.format('%s:steps/%.0f', queue, job.generation)
end

-- A job has ended: let advance_flows see to the open flows that it waits for (`p`, see flow_commit.lua). This is after the
-- writes of its end: a key of its steps that holds something else fails no call.
local function parent_ended(queue, job, state)
  local ids, i, id = redis.pcall('HGET', steps_of(queue, job), OPEN_FLOWS), 1, nil
  if type(ids) ~= 'string' then return end
  while i <= #ids do
    id, i = struct.unpack('<Bc0', ids, i)
    if redis.call('EXISTS', queue .. ':flow/' .. id) == 1 then
      redis.call('HSET', queue .. ':flow/' .. id, 'p', state == COMPLETED and 'c' or '1')
      redis.call('ZADD', queue .. ':flows/look', 0, id)
    end
  end
end

local function order(job, id)
  return struct.pack('>I7', job.generation) .. id
end

local function add_error(job, error, most)
  local errors = (job.errors or '') .. struct.pack('<I4c0', #error, error)
  local starts, at = {}, 1
  while at + 3 <= #errors do
    starts[#starts + 1] = at
    at = at + 4 + struct.unpack('<I4', errors, at)
  end
  if at ~= #errors + 1 then    -- the stored errors are damaged: keep only the new one
    job.errors = struct.pack('<I4c0', #error, error)
    return
  end
  job.errors = string.sub(errors, starts[math.max(1, #starts - most + 1)])
end

local function lease_head(generation, token)
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
  return lease_head(lease.generation, lease.token)
    .. struct.pack('<dBI2c0', lease.fetched, lease.flags, #lease.worker, lease.worker) .. (lease.reason or '')
end
