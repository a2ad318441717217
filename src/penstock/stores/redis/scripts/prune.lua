-- Remove jobs whose retention is over, and cancel jobs that have expired.
-- KEYS: the queue.  ARGV: clock, the most jobs past their retention, the most jobs beyond the newest (completed,
-- cancelled and dead together), keep_finished, keep_dead, the most expired jobs, 1: also remove old days and unused
-- partition and fair share keys.
-- Returns {ended jobs removed, expired jobs cancelled, wrong index entries removed, then the records that were set
-- aside: 3 entries each}.
-- include: size_check clock states queue leases record partitions places
local queue = KEYS[1]
local finished, expired, others = 0, 0, 0

-- The job of an index entry; nothing if the entry is wrong, or if the job had to be set aside.
local function job_at(member, ended)
  local id = string.sub(member, 8)
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record then
    forget_traces(queue, id, member)
    return nil
  end
  local reported = #set_asides
  local job, gone = readable(queue, id, record)
  if gone and ended then    -- its retention is over: it is removed, and not reported as set aside
    while #set_asides > reported do table.remove(set_asides) end
    forget_order(queue, member)
    return job
  end
  if gone or order(job, id) ~= member then
    forget_order(queue, member)
    others = others + 1
    return nil, true
  end
  return job
end

local function forget(member)
  local job, other = job_at(member, true)
  if job and not ended_state(job.state) then
    forget_order(queue, member)
    others = others + 1
    return
  end
  if job then
    local id = string.sub(member, 8)
    take(queue, id, job)
    job.counted = true    -- its flow, if any, has noted its end
    remove(queue, id, job, true)
  end
  if not other then finished = finished + 1 end
end

local n = tonumber(ARGV[2])
if n > 0 then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':over', '-inf', now, 'LIMIT', 0, n)) do
    forget(member)
  end
end
local left = tonumber(ARGV[3])
for _, state in ipairs({COMPLETED, CANCELLED, DEAD}) do
  local excess = limiting().excess_of(queue, meta(queue), state, tonumber(ARGV[4]), tonumber(ARGV[5]))
  local many = math.min(left, excess)
  if many > 0 then
    left = left - many
    for _, member in ipairs(redis.call('ZRANGE', queue .. ':ended/' .. state, 0, many - 1)) do forget(member) end
  end
end
n = tonumber(ARGV[6])
if n > 0 then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':expiring', '-inf', now, 'LIMIT', 0, n)) do
    local job, other = job_at(member)
    local id = string.sub(member, 8)
    if job and (ended_state(job.state) or redis.call('HEXISTS', queue .. ':held', id) == 1) then
      redis.call('ZREM', queue .. ':expiring', member)
      others = others + 1
    else
      if job then
        take(queue, id, job)
        end_queued(queue, id, job, EXPIRED)
      end
      if not other then expired = expired + 1 end
    end
  end
end
if ARGV[7] == '1' then
  local old = old_days(queue)
  if #old > 0 then redis.call('HDEL', queue .. ':days', unpack(old)) end
  prune_partitions(queue)
end
local answer = take_set_asides({finished, expired, others})
finish()
return answer
