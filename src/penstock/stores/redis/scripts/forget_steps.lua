-- Remove steps from the memory of running jobs whose lease is still held, and extend the leases.
-- KEYS: the queue.  ARGV: clock, then per item: id, prefix of the lease (generation and token), by (ms), name of the step,
-- "1" if it is removed only while it waits for its signal.
-- Returns 2 entries per item: STORED (the job has no such step now), ENDED (as STORED; the step was a wait, which is returned),
-- EXISTS (with the step, whose signal has come) or LOST.
-- include: clock states queue leases record steps
local STORED, ENDED = 's', 'e'
local queue, answer = KEYS[1], {}
notice_reboot(queue)

local function forget(id, prefix, by, name, waiting)
  local held = redis.call('HGET', queue .. ':held', id)
  if not held or string.sub(held, 1, #prefix) ~= prefix then return LOST, '' end
  local steps = steps_of(queue, {generation = struct.unpack('>I7', held)})
  local text, bytes, count, last = redis.call('HGET', steps, '=' .. name), memory_of(steps)
  local step = text and read_step(text)
  redis.call('ZADD', queue .. ':leases', steady + by, string.sub(held, 1, 7) .. id)
  if not step then return STORED, '' end
  local waits = step.value == '?'
  if waiting == '1' and not waits then return EXISTS, text end
  redis.call('HDEL', steps, '=' .. name)
  set_memory(steps, bytes - (waits and 0 or #name + #step.value - 1), count - 1, last)
  if waits then return ENDED, text end
  return STORED, ''
end

for i = 2, #ARGV, 5 do
  local n = #answer
  answer[n + 1], answer[n + 2] = forget(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4])
end
return answer
