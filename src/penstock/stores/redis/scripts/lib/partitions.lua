-- Partitions: which jobs of a key are admitted, and which is next. Fair share: the places of the tenants' jobs.
--   partition/KEY the jobs of a partition, by id: score -1 admitted, 0 admitted and not started (only with a rate); by
--                 waiting order: score 1 waiting. A partition exists as long as this key does.
--   partitions    key → until when recent starts count against its rate, until when it is throttled
--   partitions/over  key, by the instant at which both have passed
--   due           among the jobs, by generation 0 and its key: a partition whose first waiting job is admitted then
--   tenants       now/P, tail/P: of priority P, the greatest fetched place, and the place of the next new tenant
--   tenants/P     tenant → the place of its next job
-- needs: clock states queue record

local FAIR_STEP = 7680    -- as TENANT_STEP in core/relations.py
local PARTITION_IN_DUE = string.rep('\0', 7)    -- before its key in `due`, in place of a generation
local put, take, end_queued    -- defined in places.lua

local function terms_of(job)
  local terms = job.terms
  if not terms then
    terms = {key = string.sub(job.partition, 18)}
    terms.most, terms.ordered, terms.step, terms.burst = struct.unpack('<I4BdI4', job.partition)
    terms.ordered = terms.ordered == 1
    job.terms = terms
  end
  return terms
end

local function partition_of(queue, terms)
  return queue .. ':partition/' .. terms.key
end

local function waiting_order(job, id)
  local rank = terms_of(job).ordered and 0 or -job.priority
  return struct.pack('>BI7', 100 + rank, job.place + 4503599627370496) .. id
end

local function first_waiting(partition)
  return redis.call('ZRANGEBYSCORE', partition, 1, 1, 'LIMIT', 0, 1)[1]
end

local function spent_and_throttled(queue, key)
  local known = redis.call('HGET', queue .. ':partitions', key)
  if not known or #known ~= 16 then return 0, 0 end
  return struct.unpack('<dd', known)
end

local function store_partition(queue, key, spent, throttled_until)
  redis.call('HSET', queue .. ':partitions', key, struct.pack('<dd', spent, throttled_until))
  redis.call('ZADD', queue .. ':partitions/over', math.max(spent, throttled_until), key)
end

-- Remove jobs from the partition that were set aside and whose records did not name it.
local function remove_ghosts(queue, partition)
  for _, id in ipairs(redis.call('SMEMBERS', queue .. ':ghosts')) do
    local ok, job = pcall(read, redis.call('HGET', queue .. ':jobs', id))
    if not (ok and job.partition) then redis.call('ZREM', partition, id) end
  end
end

-- As Partition.allowed_at: when one more job may be admitted; nil: only after another job leaves or starts.
local function allowed_at(queue, terms)
  local partition = partition_of(queue, terms)
  if meta(queue).ghosts then remove_ghosts(queue, partition) end
  if redis.call('ZCOUNT', partition, -1, 0) >= terms.most then return nil end
  local spent, throttled_until = spent_and_throttled(queue, terms.key)
  if terms.step == 0 then return throttled_until end
  local left = terms.burst - 1 - redis.call('ZCOUNT', partition, 0, 0)
  if left < 0 then return nil end
  if spent > now + (terms.burst + 1) * terms.step then spent = now end
  return math.max(throttled_until, math.ceil(spent - left * terms.step))
end

local function may_enter(queue, id, job)
  local terms = terms_of(job)
  local first = first_waiting(partition_of(queue, terms))
  if first and first < waiting_order(job, id) then return false end
  local at = allowed_at(queue, terms)
  return at ~= nil and at <= now
end

local function admit(queue, id, job)
  local terms = terms_of(job)
  job.admitted = true
  redis.call('ZADD', partition_of(queue, terms), terms.step > 0 and 0 or -1, id)
end

local function leave(queue, id, job)
  if job.admitted then redis.call('ZREM', partition_of(queue, terms_of(job)), id) end
  job.admitted = false
end

-- Admit the job to its partition, or release its admission, as its new state requires; a full partition makes it wait.
local function enter(queue, id, job)
  local terms, state = terms_of(job), job.state
  if state == AVAILABLE then
    if job.admitted or may_enter(queue, id, job) then admit(queue, id, job) else job.state = WAITING end
  elseif terms.ordered and (state == SCHEDULED or state == RETRYABLE or state == PARKED or state == SUSPENDED) then
    if job.admitted then redis.call('ZADD', partition_of(queue, terms), -1, id) end
  else
    leave(queue, id, job)
  end
end

local busy = {}

-- Admit waiting jobs while there is room, and store when the next one may be; returns how many were admitted.
local function advance(queue, key)
  local partition = queue .. ':partition/' .. key
  if busy[partition] then return 0 end
  busy[partition] = true
  local admitted, due = 0, nil
  while true do
    local first = first_waiting(partition)
    if not first then break end
    local id = string.sub(first, 9)
    local record = redis.call('HGET', queue .. ':jobs', id)
    local job = record and readable(queue, id, record)
    if job and job.state == WAITING then
      due = allowed_at(queue, terms_of(job))
      if not due or due > now then break end
      due = nil
      take(queue, id, job)
      job.state, job.at_tail, job.admitted = AVAILABLE, true, true
      put(queue, id, job)
      admitted = admitted + 1
    else    -- another program has deleted or overwritten it
      redis.call('ZREM', partition, first)
      redis.call('ZREM', queue .. ':state/' .. WAITING, id)
    end
  end
  busy[partition] = nil
  if due then
    redis.call('ZADD', queue .. ':due', due, PARTITION_IN_DUE .. key)
    made_due[queue] = math.min(made_due[queue] or due, due)
  else
    redis.call('ZREM', queue .. ':due', PARTITION_IN_DUE .. key)
  end
  return admitted
end

-- Throttle the partition until `till`. With `back`, this job loses its admission, too.
local function throttle_partition(queue, id, job, till, back)
  local key = terms_of(job).key
  local spent, throttled_until = spent_and_throttled(queue, key)
  store_partition(queue, key, spent, math.max(throttled_until, till))
  if back then leave(queue, id, job) end
end

-- Count the start of a fetched job, if its partition has a rate. As Partition.after_start.
local function count_partition_start(queue, id, job)
  local terms = terms_of(job)
  if terms.step == 0 then return end
  redis.call('ZADD', partition_of(queue, terms), -1, id)
  local spent, throttled_until = spent_and_throttled(queue, terms.key)
  spent = math.min(math.max(spent, now), now + terms.burst * terms.step) + terms.step
  store_partition(queue, terms.key, spent, throttled_until)
  advance(queue, terms.key)
end

-- ── fair share ──

local function tenant_of(job)
  if not job.tenant then return FAIR_STEP, '' end
  return struct.unpack('<I2', job.tenant), string.sub(job.tenant, 3)
end

-- Make the queue fair, if it is not: the places of the fair share begin after the place of this job.
local function become_fair(queue, job)
  local m = meta(queue)
  if not m.fair then
    m.fair = job.place
    save()
    redis.call('HSET', queue .. ':meta', 'fair', m.fair)
  end
end

local function place_now(queue, priority)
  return tonumber(redis.call('HGET', queue .. ':tenants', 'now/' .. priority)) or meta(queue).fair
end

-- The place of a new tenant: after all fetched places, and after other new tenants.
local function first_place(queue, priority)
  local tail = tonumber(redis.call('HGET', queue .. ':tenants', 'tail/' .. priority)) or 0
  return math.max(tail, place_now(queue, priority) + 1)
end

-- Set the job's place to the tail of its tenant.
local function assign_place(queue, job)
  local step, key = tenant_of(job)
  local ends = queue .. ':tenants/' .. job.priority
  local first = first_place(queue, job.priority)
  job.place = math.max(first, tonumber(redis.call('ZSCORE', ends, key)) or 0)
  if job.place == first then redis.call('HSET', queue .. ':tenants', 'tail/' .. job.priority, first + 1) end
  redis.call('ZADD', ends, job.place + step, key)
end

-- Give back the place of an available job that leaves the queue without being fetched.
local function give_back(queue, job)
  local fair = meta(queue).fair
  if not fair or job.place <= fair then return end
  local step, key = tenant_of(job)
  local ends = queue .. ':tenants/' .. job.priority
  local next_one = tonumber(redis.call('ZSCORE', ends, key))
  if not next_one then return end
  next_one = next_one - step + 1    -- plus 1: another job of the tenant may have the place before
  if next_one < first_place(queue, job.priority) then
    redis.call('ZREM', ends, key)
  else
    redis.call('ZADD', ends, next_one, key)
  end
end

-- Advance the round after n jobs were fetched, the last of them from this place.
local function advance_fair_share(queue, priority, place, n)
  if place <= place_now(queue, priority) then return end
  redis.call('HSET', queue .. ':tenants', 'now/' .. priority, place)
  local ends = queue .. ':tenants/' .. priority
  local past = redis.call('ZRANGEBYSCORE', ends, '-inf', place, 'LIMIT', 0, 2 * n + 16)
  if #past > 0 then redis.call('ZREM', ends, unpack(past)) end
end

-- ── removing unused keys ──

local function has_idle_partitions(queue)
  if redis.call('ZCOUNT', queue .. ':partitions/over', '-inf', now) > 0 then return true end
  if not meta(queue).fair or redis.call('EXISTS', queue .. ':ready') == 1 then return false end
  for _, field in ipairs(redis.call('HKEYS', queue .. ':tenants')) do
    if redis.call('EXISTS', queue .. ':tenants/' .. (string.match(field, '/(%-?%d+)$') or '')) == 1 then return true end
  end
  return false
end

-- Remove unused partition keys; if no job is ready, remove the tenants' places, so that all start equal again.
local function prune_partitions(queue)
  local over = redis.call('ZRANGEBYSCORE', queue .. ':partitions/over', '-inf', now, 'LIMIT', 0, 1000)
  if #over > 0 then
    redis.call('HDEL', queue .. ':partitions', unpack(over))
    redis.call('ZREM', queue .. ':partitions/over', unpack(over))
  end
  if not meta(queue).fair or redis.call('EXISTS', queue .. ':ready') == 1 then return end
  for _, field in ipairs(redis.call('HKEYS', queue .. ':tenants')) do
    local kind, priority = string.match(field, '^(.*)/(.*)$')
    local last = kind == 'tail' and redis.call('ZREVRANGE', queue .. ':tenants/' .. priority, 0, 0, 'WITHSCORES')
    if last and last[2] and tonumber(priority) then
      local place = math.max(tonumber(last[2]), place_now(queue, priority))
      redis.call('HSET', queue .. ':tenants', 'now/' .. priority, place)
      redis.call('UNLINK', queue .. ':tenants/' .. priority)
    end
  end
end
