-- Give signals to the jobs that wait for them, and wake those that are suspended.
-- KEYS: the queue.  ARGV: clock, then per signal: id of the job, its generation, name of the step, number of the
-- delivery, name and key of the signal, data.  Returns one status code per signal: APPLIED (also if this delivery was made before), or GONE if the
-- job waits for it no more.
-- include: clock states queue record partitions places steps
local queue, codes = KEYS[1], {}

local function deliver(id, generation, name, delivery, signal, key, data)
  local ok, job = pcall(read, redis.call('HGET', queue .. ':jobs', id))
  if not ok or string.format('%.0f', job.generation) ~= generation then return GONE end
  local steps = steps_of(queue, job)
  local text = redis.call('HGET', steps, '=' .. name)
  if not text then return GONE end
  local step, running = read_step(text), redis.call('HEXISTS', queue .. ':held', id) == 1
  if step.value ~= '?' then return step.delivery == delivery and APPLIED or GONE end
  if step.signal ~= signal or step.key ~= key then return GONE end
  if ended_state(job.state) and not running then return GONE end
  local bytes, count, last = memory_of(steps)
  if running or job.state ~= SUSPENDED then
    redis.call('HSET', steps, WOKEN, '1')
  else    -- first: if one of its keys holds something else, the delivery is repeated later
    take(queue, id, job)
    job.run = now
    put_available(queue, id, job)
  end
  step.at, step.delivery, step.value = now, delivery, '=' .. data
  write_step(steps, name, step)
  set_memory(steps, bytes + #name + #data, count, last)
  return APPLIED
end

for i = 2, #ARGV, 7 do codes[#codes + 1] = deliver(unpack(ARGV, i, i + 6)) end
finish()
return table.concat(codes)
