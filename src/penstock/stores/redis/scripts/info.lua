-- Count the jobs of a queue by state, and read its settings.
-- KEYS: the queue.  ARGV: clock.  Returns {whether the queue exists (1, 0), paused, closed, the earliest run_at of its
-- available jobs ('' if none), limits, those by an operator, those by code, throttled until ('' if not), when the rate or
-- the throttle lets the next job start ('' if now, or when a job ends), then the count of each state, by its number}.
-- include: clock states queue record partitions places listing
local queue = KEYS[1]
local m = meta(queue)
local oldest

-- Note the run_at of a job, unless another program has deleted or overwritten it: operators still see all queues.
local function note_run_at(id)
  local record = redis.call('HGET', queue .. ':jobs', id)
  local readable, job = pcall(read, record)
  if record and readable then oldest = math.min(oldest or job.run, job.run) end
end

-- Fresh jobs are in the order of their run_at; of the other available jobs, the first thousand are read.
for _, priority in ipairs(bands(queue)) do
  for _, name in ipairs(first_segments(queue, priority, 1000)) do
    if not is_moved(name) then
      note_run_at(redis.call('LINDEX', queue .. ':ready/' .. name, 0))
      break
    end
  end
end
for _, id in ipairs(redis.call('ZRANGE', queue .. ':state/' .. AVAILABLE, 0, 999)) do note_run_at(id) end
local answer = {
  redis.call('EXISTS', queue .. ':meta'), m.paused and 1 or 0, m.closed and 1 or 0,
  oldest and string.format('%.0f', oldest) or '', m.limits or '',
  redis.call('HGET', queue .. ':meta', 'limits_by_operator') or '',
  redis.call('HGET', queue .. ':meta', 'limits_by_code') or '',
  m.throttled_until and m.throttled_until > now and string.format('%.0f', m.throttled_until) or '',
}
local room, opens_at
if m.limited then room, opens_at = limiting().room_of(queue, m) end
answer[#answer + 1] = room == 0 and opens_at and string.format('%.0f', opens_at) or ''
for state = SCHEDULED, SUSPENDED do answer[#answer + 1] = jobs_in(queue, state) end
return answer
