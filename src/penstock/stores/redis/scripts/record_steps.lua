-- Append steps and waits to the memory of running jobs whose lease is still held, and extend the leases.
-- KEYS: the queue.  ARGV: clock, the most bytes and the most steps of a job, then per item: id, prefix of the lease
-- (generation and token), by (ms), name of the step, and "=" and its value, or "?" for a wait, the size of the signal's
-- name (2 bytes), its name and its key.
-- Returns 2 entries per item: STORED (for a wait: with when the job was enqueued; 0 for a node of a flow; then ':', and the
-- step before, if it was a wait for another signal), EXISTS (with the stored step), ENDED (as STORED; the step was a wait,
-- which is returned), LOST or FULL.
-- include: clock states queue leases record steps
local STORED, ENDED, UNDO = 's', 'e', 'undo!'    -- stepping.STEP_UNDO
local queue, most_bytes, most_steps, answer = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), {}
notice_reboot(queue)

-- Extend the lease. Returns the key of the job's steps, and its generation; nothing if the lease is not held.
local function hold(id, prefix, by)
  local held = redis.call('HGET', queue .. ':held', id)
  if not held or string.sub(held, 1, #prefix) ~= prefix then return nil end
  redis.call('ZADD', queue .. ':leases', steady + by, string.sub(held, 1, 7) .. id)
  return steps_of(queue, {generation = struct.unpack('>I7', held)}), held
end

-- Mark the job, before its first step, and its lease: its end removes its steps. One with steps to undo expires no more.
local function mark(id, held, steps, has_undo)
  local job = read(redis.call('HGET', queue .. ':jobs', id))
  if has_undo and job.expires then
    job.expires = nil
    redis.call('HSET', queue .. ':jobs', id, write(job))
  end
  if redis.call('HEXISTS', steps, MEMORY) == 1 then return job end
  set_flag(queue, id, held, SHARES_KEY)
  job.steps = true
  redis.call('HSET', queue .. ':jobs', id, write(job))
  return job
end

local function store(id, held, steps, name, value)
  local text = redis.call('HGET', steps, '=' .. name)
  local before = text and read_step(text)
  if before and before.value ~= '?' then return EXISTS, text end
  local waits = string.sub(value, 1, 1) == '?'
  local size = #name + (waits and 0 or #value - 1)
  local bytes, count, last = memory_of(steps)
  if bytes + size > most_bytes or (not before and count >= most_steps) then return FULL, '' end
  local step = {number = before and before.number or last + 1, at = now, signal = '', key = '', delivery = '', value = value}
  local enqueued = ''
  if count == 0 or waits or name == UNDO then
    local ok, job = pcall(mark, id, held, steps, name == UNDO)
    if not ok then return LOST, '' end    -- an unreadable record is found when the job is settled
    enqueued = job.flow and '0' or string.format('%.0f', job.enqueued)
  end
  if waits then
    step.signal = struct.unpack('<I2c0', value, 2)
    step.key, step.value = string.sub(value, 4 + #step.signal), '?'
  end
  if waits and before then
    local changed = before.signal ~= step.signal or before.key ~= step.key
    before.signal, before.key = step.signal, step.key
    if changed then write_step(steps, name, before) end
    return STORED, enqueued .. ':' .. (changed and text or '')
  end
  write_step(steps, name, step)
  set_memory(steps, bytes + (waits and 0 or size), before and count or count + 1, before and last or last + 1)
  if waits then return STORED, enqueued .. ':' end
  if before then return ENDED, text end
  return STORED, ''
end

for i = 4, #ARGV, 5 do
  local n, id = #answer, ARGV[i]
  local steps, held = hold(id, ARGV[i + 1], tonumber(ARGV[i + 2]))
  if steps then
    answer[n + 1], answer[n + 2] = store(id, held, steps, ARGV[i + 3], ARGV[i + 4])
  else
    answer[n + 1], answer[n + 2] = LOST, ''
  end
end
return answer
