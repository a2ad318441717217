-- Change what a job remembers that no worker has now, for operators.
-- KEYS: the queue.  ARGV: clock, the most bytes and the most steps of a job, id, then per edit: name of the step, "=" and its new
-- value ('': drop it).
-- Returns {APPLIED, GONE (no job), 'h' (a worker has it) or FULL, generation of the job, then per wait that has ended: name of
-- the step, the step before}.
-- include: clock states queue record partitions places steps
local queue = KEYS[1]

-- How each edit changes the memory: its steps, bytes and count then, the changes, and the waits that end.
local function planned(steps)
  local bytes, count, last = memory_of(steps)
  local changes, ended = {}, {}
  for i = 5, #ARGV, 2 do
    local name, value = ARGV[i], ARGV[i + 1]
    local stored = redis.call('HGET', steps, '=' .. name)
    local step = stored and read_step(stored)
    if step and step.value == '?' then ended[#ended + 1], ended[#ended + 2] = name, stored end
    if step then
      bytes = bytes - (step.value == '?' and 0 or #name + #step.value - 1)
      if value == '' then count = count - 1 end
    elseif value ~= '' then
      count, last = count + 1, last + 1
      step = {number = last, signal = '', key = '', delivery = ''}
    end
    if value ~= '' then
      bytes = bytes + #name + #value - 1
      step.at, step.value = now, value
      changes[#changes + 1] = {name, step}
    elseif step then
      changes[#changes + 1] = {name}
    end
  end
  return bytes, count, last, changes, ended
end

local function edit(most_bytes, most_steps, id)
  local text = redis.call('HGET', queue .. ':jobs', id)
  if not text then return {GONE, '0'} end
  if redis.call('HEXISTS', queue .. ':held', id) == 1 then return {'h', '0'} end
  local ok, job = pcall(read, text)
  if not ok then return {GONE, '0'} end
  local steps = steps_of(queue, job)
  local bytes, count, last, changes, ended = planned(steps)
  if bytes > most_bytes or count > most_steps then return {FULL, '0'} end
  for _, change in ipairs(changes) do
    if change[2] then write_step(steps, change[1], change[2]) else redis.call('HDEL', steps, '=' .. change[1]) end
  end
  set_memory(steps, bytes, count, last)
  if not job.steps then
    job.steps = true
    redis.call('HSET', queue .. ':jobs', id, write(job))
  end
  if job.state == SUSPENDED then
    take(queue, id, job)
    job.run = now
    put_available(queue, id, job)
  end
  finish()
  table.insert(ended, 1, APPLIED)
  table.insert(ended, 2, string.format('%.0f', job.generation))
  return ended
end

return edit(tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4])
