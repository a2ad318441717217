-- Reclaim: lease to the caller the jobs whose leases have run out, or those of named workers.
-- KEYS: the queues.  ARGV: clock, limit, lease (ms), worker, token, then either nothing (all leases that have run
-- out, the earliest first) or the workers' names, "|", and pairs (number of the queue, id): these jobs, if one of the
-- workers still holds them.
-- Returns {now, 4 entries per job: number of the queue, id, record, lease; or per record that was set aside: 0, id, the
-- queue's key, cause}.
-- include: size_check clock states queue leases record partitions places
local limit, worker, token = tonumber(ARGV[2]), ARGV[4], ARGV[5]
local till = steady + tonumber(ARGV[3])
for _, queue in ipairs(KEYS) do notice_reboot(queue) end
local answer = {string.format('%.0f', now)}
under_token(KEYS, token, answer)
if #answer > 1 then return answer end

local function lease_to_caller(q, id, member)
  local queue = KEYS[q]
  local is_read, old = pcall(read_held, redis.call('HGET', queue .. ':held', id))
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not is_read then    -- deleted, or overwritten
    if member then redis.call('ZREM', queue .. ':leases', member) end
    if record and redis.call('HEXISTS', queue .. ':held', id) == 1 then
      set_aside(queue, id, record, 'its lease cannot be read')
    end
    return
  end
  local order = struct.pack('>I7', old.generation) .. id
  if member and member ~= order then redis.call('ZREM', queue .. ':leases', member) end
  remove_leases(queue, old.token, {id}, {order})
  if not record then return end    -- another program has deleted the job
  old.token, old.reason, old.worker = token, 'lost by ' .. old.worker, worker    -- lifecycle.LOST_BY
  local held = write_held(old)
  redis.call('ZADD', queue .. ':leases', till, order)
  redis.call('HSET', queue .. ':held', id, held)
  count_on(queue .. ':tokens', token, 1)
  for _, fact in ipairs({q, id, record, held}) do answer[#answer + 1] = fact end
end

-- The answer, with the records that were set aside.
local function answered()
  local aside = take_set_asides({})
  for i = 1, #aside, 3 do
    for _, fact in ipairs({0, aside[i + 1], aside[i], aside[i + 2]}) do answer[#answer + 1] = fact end
  end
  finish()
  return answer
end

if ARGV[6] then
  local of, i = {}, 6
  while ARGV[i] ~= '|' do
    of[ARGV[i]] = true
    i = i + 1
  end
  for k = i + 1, #ARGV, 2 do
    local q = tonumber(ARGV[k])
    local held = redis.call('HGET', KEYS[q] .. ':held', ARGV[k + 1])
    local is_read, lease = pcall(read_held, held)
    if is_read and of[lease.worker] then lease_to_caller(q, ARGV[k + 1]) end
  end
  return answered()
end

-- Collect all leases that have run out first: a new lease may run out at once, and must not be leased twice in a call.
local over = {}
for q, queue in ipairs(KEYS) do
  local found = redis.call('ZRANGEBYSCORE', queue .. ':leases', '-inf', steady, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #found, 2 do over[#over + 1] = {tonumber(found[i + 1]), found[i], q} end
end
table.sort(over, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
for i = 1, math.min(limit, #over) do lease_to_caller(over[i][3], string.sub(over[i][2], 8), over[i][2]) end
return answered()
