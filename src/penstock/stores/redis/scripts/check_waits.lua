-- Tell which jobs still wait for their signals.
-- KEYS: the queue.  ARGV: clock, then per wait: stored form of the job's id, the id, its generation, name of the step,
-- digest of the signal's name, key and flow.  Returns one status code per wait: APPLIED, or GONE if the job waits for it no
-- more.
-- include: clock states queue record partitions places steps
local queue, codes = KEYS[1], {}

local function digest(step, flow)
  return redis.sha1hex(struct.pack('<I2I2', #step.signal, #step.key) .. step.signal .. step.key .. flow)
end

local function waits(stored, id, generation, name, prefix)
  local ok, job = pcall(read, redis.call('HGET', queue .. ':jobs', stored))
  if not ok or string.format('%.0f', job.generation) ~= generation then return false end
  local text = redis.call('HGET', steps_of(queue, job), '=' .. name)
  if not text then return false end
  local step = read_step(text)
  if step.value ~= '?' or (digest(step, '') ~= prefix and digest(step, id) ~= prefix) then return false end
  return not ended_state(job.state) or redis.call('HEXISTS', queue .. ':held', stored) == 1
end

for i = 2, #ARGV, 5 do codes[#codes + 1] = waits(unpack(ARGV, i, i + 4)) and APPLIED or GONE end
return table.concat(codes)
