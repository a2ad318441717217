-- Fetch: lease available jobs.
-- KEYS: the queues.  ARGV: clock, limit, lease (ms), worker, token, charge (1, 0), whether the token may
-- have been used before (1, 0), the worker's tasks ("?": not given; "!": the last key, which is not a queue, has
-- the announcements of workers; or msgpack: tasks, and queues of which it handles every task), then per queue: quota
-- (-1: the queue is only searched for leases under the token), cap, and the most jobs if the queue is limited ('' :
-- any number).
-- Returns {now, next due ('' if none), note, when the first blocked queue opens ('' if none), then runs}.
-- note: "again" (the jobs were leased under this token before), "tasks" (there are parked jobs: call again with the
-- worker's tasks), "kept" and the numbers of the queues that have parked jobs for this worker but already run as many
-- jobs as their limit allows, or "".
-- runs: number of the queue, number of jobs, and per job id, record; of a limited queue: number of the queue, minus the
-- number of jobs, and per job id, record, when it starts; of records that were set aside: 0, their number, and per
-- record the queue's key, id, cause.
-- After "again", 4 entries per job: number of the queue, id, record, lease.
-- include: clock states queue
local queues = {unpack(KEYS)}
local announced = ARGV[8] == '!' and table.remove(queues)
local limit, lease, worker, token, charge = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local MOST_EXAMINED = 3000    -- the most jobs, e.g. expired ones, that one fetch examines without leasing them

local slow
local function slow_path()
  if slow then return slow end
  -- include: leases record partitions places
  slow = {
    notice_reboot = notice_reboot, under_token = under_token, readable = readable, write = write, order = order,
    end_queued = end_queued, take_parked = take_parked, close_again = close_again,
    take = take, put = put, may_enter = may_enter, admit = admit, advance = advance, terms_of = terms_of,
    count_partition_start = count_partition_start, set_aside = set_aside, give_back = give_back,
    advance_fair_share = advance_fair_share,
    start_key = function(queue, id, job) shift_key(queue, id, job, QUEUED_PHASE, RUNNING_PHASE) end,
  }
  return slow
end

local now_text = string.format('%.0f', now)
for _, queue in ipairs(boot and queues or {}) do slow_path().notice_reboot(queue) end

-- The earliest due time of the queues to fetch from.
local function next_due()
  local due
  for q, queue in ipairs(queues) do
    local first = tonumber(ARGV[6 + 3 * q]) >= 0 and first_due(queue)
    if first and (not due or first < due) then due = first end
  end
  return due and string.format('%.0f', due) or ''
end
local due = next_due()    -- before any lease: an error from a wrong type of its key must not strand leased jobs
local due_changed = false

if ARGV[7] == '1' then
  for _, queue in ipairs(queues) do
    if redis.call('HEXISTS', queue .. ':tokens', token) == 1 then
      return slow_path().under_token(queues, token, {now_text, due, 'again', ''})
    end
  end
end

local parked, knows = false, nil
for _, queue in ipairs(queues) do
  if redis.call('EXISTS', queue .. ':parked') == 1 then parked = true end
end
if parked then
  if ARGV[8] == '?' then return {now_text, due, 'tasks'} end
  if announced then
    local announcement = redis.call('HGET', announced, worker)
    local ok, info = pcall(cmsgpack.unpack, announcement and string.sub(announcement, 9))
    knows = ok and type(info) == 'table' and type(info.tasks) == 'table' and info or {tasks = {}}
  else
    knows = cmsgpack.unpack(ARGV[8])
  end
end

local answer, examined = {now_text, due, '', ''}, 0

-- Each `pick` function removes up to n jobs from their index and returns their ids and records.

local wanted = {}    -- by queue: the tasks of its parked jobs that this worker runs

local function wanted_of(queue)
  local found = {}
  local parked_here, runs = queue .. ':parked', knows.tasks
  for _, name in ipairs(knows.handled or {}) do
    if name == name_of(queue) then runs = redis.call('HKEYS', parked_here) end
  end
  local counts = #runs > 0 and get_many(parked_here, runs) or {}
  for i, task in ipairs(runs) do
    if counts[i] then found[#found + 1] = task end
  end
  return found
end

local function pick_parked(queue)
  local first, of_task
  wanted[queue] = wanted[queue] or wanted_of(queue)
  for _, task in ipairs(wanted[queue]) do
    local head = redis.call('ZRANGE', queue .. ':parked/' .. task, 0, 0)[1]
    if head and (not first or head < first) then first, of_task = head, task end
  end
  if not first then return nil end
  local id = string.sub(first, 9)
  local record = redis.call('HGET', queue .. ':jobs', id)
  local job, gone
  if record then job, gone = slow_path().readable(queue, id, record) end
  if not job or gone or job.state ~= PARKED then    -- another program has deleted or overwritten it
    examined = examined + 1
    if redis.call('ZREM', queue .. ':parked/' .. of_task, first) == 1
      and count_on(queue .. ':parked', of_task, -1) <= 0 then
      redis.call('HDEL', queue .. ':parked', of_task)
    end
    return {}, {}
  end
  if job.partition and not job.admitted and not (job.expires and job.expires <= now) then
    if not slow.may_enter(queue, id, job) then
      examined = examined + 1
      slow.take(queue, id, job)
      job.state = AVAILABLE
      slow.put(queue, id, job)
      return {}, {}
    end
    slow.admit(queue, id, job)
    slow.advance(queue, slow.terms_of(job).key)    -- there is less room for those that wait
    due_changed = true
    record = slow.write(job)
    redis.call('HSET', queue .. ':jobs', id, record)
  end
  slow.take_parked(queue, id, job)
  redis.call('ZREM', queue .. ':state/' .. PARKED, id)
  return {id}, {record}
end

-- Whether the job has expired and is in a partition: then the partition admits another job, which may come next.
local function frees_partition(record)
  if not record or #record < 71 or bit.band(string.byte(record), LONG) == 0 then return false end
  local expires, has = struct.unpack('<d', record, 38), struct.unpack('<I2', record, 70)
  return expires ~= NONE and expires <= now and bit.band(has, PARTITION) ~= 0
end

-- Update the counters of a segment after jobs were popped from its head.
local function leave_segment(queue, name, ids)
  if is_moved(name) then
    in_steps('ZREM', queue .. ':state/' .. AVAILABLE, ids)
  else
    local m = meta(queue)
    m.fresh = m.fresh - #ids
  end
  if redis.call('EXISTS', queue .. ':ready/' .. name) == 0 then close_segment(queue, name) end
end

local function pick_ready(queue, name, n)
  local ids = redis.call('LPOP', queue .. ':ready/' .. name, n) or {}
  leave_segment(queue, name, ids)
  return ids, #ids > 0 and get_many(queue .. ':jobs', ids) or {}
end

-- Take jobs of a priority from its lists and from `again`, merged by place.
local function pick_both(queue, priority, n)
  local name = first_segments(queue, priority, 1)[1]
  local places = redis.call('ZRANGE', queue .. ':again/' .. priority, 0, n - 1, 'WITHSCORES')
  local listed = name and redis.call('LRANGE', queue .. ':ready/' .. name, 0, n - 1) or {}
  local listed_records = #listed > 0 and get_many(queue .. ':jobs', listed) or {}
  local again_ids = {}
  for i = 1, #places, 2 do again_ids[#again_ids + 1] = places[i] end
  local again_records = #again_ids > 0 and get_many(queue .. ':jobs', again_ids) or {}
  local ids, records, f, a = {}, {}, 1, 1
  -- behind the jobs read from a segment the order is unknown: the next call continues there
  while #ids < n and (f <= #listed or (not name and a <= #again_ids)) do
    if f > #listed or (a <= #again_ids and tonumber(places[2 * a]) < place_of(listed_records[f])) then
      ids[#ids + 1], records[#records + 1] = again_ids[a], again_records[a]
      a = a + 1
      if frees_partition(again_records[a - 1]) then break end
    else
      ids[#ids + 1], records[#records + 1] = listed[f], listed_records[f]
      f = f + 1
    end
  end
  if f > 1 then
    redis.call('LPOP', queue .. ':ready/' .. name, f - 1)
    leave_segment(queue, name, {unpack(listed, 1, f - 1)})
  end
  -- a list or `again` set that another program has deleted must not cause an endless loop
  if f == 1 and name and #listed == 0 then close_segment(queue, name) end
  if #ids == 0 and not name then slow_path().close_again(queue, priority) end
  if a > 1 then
    local taken = {unpack(again_ids, 1, a - 1)}
    in_steps('ZREM', queue .. ':again/' .. priority, taken)
    in_steps('ZREM', queue .. ':state/' .. AVAILABLE, taken)
    if redis.call('EXISTS', queue .. ':again/' .. priority) == 0 then slow_path().close_again(queue, priority) end
  end
  return ids, records
end

local function pick(queue, n)
  if knows then
    local ids, records = pick_parked(queue)
    if ids then return ids, records end
  end
  local name = redis.call('ZRANGE', queue .. ':ready', 0, 0)[1]
  if not name then return nil end
  local priority = string.match(name, '^(.-)/again$')
  if priority then return pick_both(queue, tonumber(priority), n) end
  return pick_ready(queue, name, n)
end

local leased = 0
local till = string.format('%.0f', steady + lease)
local token_part = string.char(#token) .. token
local lease_parts = {}    -- by flags: the bytes that all leases of this call share

local function lease_part(flags, start)
  if start ~= now then return token_part .. struct.pack('<dBI2c0', start, flags, #worker, worker) end
  local part = lease_parts[flags]
  if not part then
    part = token_part .. struct.pack('<dBI2c0', now, flags, #worker, worker)
    lease_parts[flags] = part
  end
  return part
end

local RESET_PARTS = 20    -- bits of progress and reason, which a new attempt resets
local UNIQUE = 32
local HAS_SHARED_KEY = 9056  -- bits of a unique key, a partition, a batch, a flow and of steps: the end affects more than the job

-- Start a new attempt of a job, and return its record; nothing if the job has expired: then it is cancelled.
local function start_attempt(queue, id, job)
  if job.expires then redis.call('ZREM', queue .. ':expiring', slow.order(job, id)) end
  if job.expires and job.expires <= now then
    if job.state == AVAILABLE then slow.give_back(queue, job) end
    slow.end_queued(queue, id, job, EXPIRED)
    return nil
  end
  local changed = job.progress or job.reason and not job.asked    -- keep the reason of a request to stop
  job.progress = nil
  if not job.asked then job.reason = nil end
  local record = slow.write(job)
  if changed then redis.call('HSET', queue .. ':jobs', id, record) end
  return record
end

-- Check a job that is not plain: its record, its expiry, and the bits of its parts. Nothing if the job does not belong
-- into the index where it was found: it was overwritten and is set aside, or its state has changed.
local function check_record(queue, id, record)
  local state = state_of(string.byte(record) or 0)
  if #record < 75 or bit.band(string.byte(record), LONG) == 0 or (state ~= AVAILABLE and state ~= PARKED) then
    local job, gone = slow_path().readable(queue, id, record, true)
    if not gone and redis.call('ZSCORE', queue .. ':state/' .. job.state, id) == false then
      slow.set_aside(queue, id, record, 'its state is not the one in which it was kept', true)
    end
    return nil
  end
  return record, struct.unpack('<d', record, 38), struct.unpack('<I2', record, 70)
end

-- Start a job that can expire, has data of an earlier attempt, or affects other jobs; nothing if it cannot start.
local function begin(queue, id, record, expires, has)
  local job, gone = slow_path().readable(queue, id, record, true)
  if gone then return nil end
  if expires ~= NONE or bit.band(has, RESET_PARTS) ~= 0 then record = start_attempt(queue, id, job) end
  if record and bit.band(has, UNIQUE) ~= 0 then slow.start_key(queue, id, job) end
  if record and bit.band(has, PARTITION) ~= 0 then slow.count_partition_start(queue, id, job) end
  return record
end

-- Store the leases; cancel expired jobs instead. Returns how many jobs were leased.
local function lease_jobs(q, queue, ids, records)
  local ends, held, run, n, unexpiring = {}, {}, {}, 0, {}
  local m = meta(queue)
  local count_start = m.limited and limiting().count_start
  local common = m.limited and limiting().rules_of(m).max_running and charge + LIMITED or charge
  local fair, place, priority = m.fair, 0, nil
  for i = 1, #ids do
    local id, record = ids[i], records[i]
    local flags, start = common, now
    if record and (bit.band(string.byte(record) or 0, PLAIN_MASK) ~= PLAIN or #record < 13) then
      local expires, has
      record, expires, has = check_record(queue, id, record)
      if record and has >= ASKED_TO_STOP then flags = flags + ASKED end
      if record and bit.band(has, HAS_SHARED_KEY) ~= 0 then flags = flags + SHARES_KEY end
      if record and expires > now and bit.band(has, RESET_PARTS + UNIQUE + PARTITION) == 0 then
        unexpiring[#unexpiring + 1] = string.sub(record, 2, 8) .. id    -- as `order`: all that its start changes
      elseif record and (expires ~= NONE or bit.band(has, RESET_PARTS + UNIQUE + PARTITION) ~= 0) then
        if fair and expires ~= NONE and expires <= now and priority then    -- advance the round first
          slow_path().advance_fair_share(queue, priority, place, n / 2)
        end
        record = begin(queue, id, record, expires, has)
      end
      if fair and record and state_of(string.byte(record)) == AVAILABLE then
        place, priority = math.max(place, place_of(record)), string.byte(record, 9) - 128
      end
    end
    if record then
      local generation = string.sub(record, 2, 8)
      ends[n + 1], ends[n + 2] = till, generation .. id
      if count_start then start = count_start(queue, m) end
      held[n + 1], held[n + 2] = id, generation .. lease_part(flags, start)
      if count_start then
        run[#run + 1], run[#run + 2], run[#run + 3] = id, record, string.format('%.0f', start)
      else
        run[n + 1], run[n + 2] = id, record
      end
      n = n + 2
    end
  end
  n = n / 2
  if fair and priority and place > fair then slow_path().advance_fair_share(queue, priority, place, n) end
  in_steps('ZREM', queue .. ':expiring', unexpiring)
  if n > 0 then
    in_steps('ZADD', queue .. ':leases', ends)
    in_steps('HSET', queue .. ':held', held)
    count_on(queue .. ':tokens', token, n)
    local at = #answer
    answer[at + 1], answer[at + 2] = q, count_start and -n or n
    for i = 1, #run do answer[at + 2 + i] = run[i] end
    if count_start then limiting().store_starts(queue, m) end
  end
  return n
end

-- The most jobs to take from a limited queue: not more than the free slots if it has max_running or a rate.
local function most_of(q, queue, most)
  local rules, free = limiting().rules_of(meta(queue)), tonumber(ARGV[8 + 3 * q])
  if free and (rules.max_running or rules.step) then return math.min(most, free) end
  return most
end

local leased_of = {}    -- by number of the queue
for q = 1, #queues do leased_of[q] = 0 end
for pass = 1, 2 do
  for q, queue in ipairs(queues) do
    local cap = tonumber(ARGV[7 + 3 * q])
    local most = pass == 1 and math.min(tonumber(ARGV[6 + 3 * q]), cap) or cap
    if most > 0 and meta(queue).limited then most = most_of(q, queue, most) end
    while leased < limit and leased_of[q] < most and examined < MOST_EXAMINED and not meta(queue).paused do
      local n = math.min(limit - leased, most - leased_of[q])
      if meta(queue).limited then n = math.min(n, (limiting().room_of(queue, meta(queue)))) end
      local ids, records
      if n > 0 then ids, records = pick(queue, n) end
      if not ids then break end
      n = lease_jobs(q, queue, ids, records)
      examined = examined + #ids - n
      leased, leased_of[q] = leased + n, leased_of[q] + n
    end
  end
end

-- Find when the first blocked queue opens, including queues with the cap 0, but not those searched only for the token.
for q, queue in ipairs(queues) do
  local m = tonumber(ARGV[6 + 3 * q]) >= 0 and meta(queue)
  if m and m.limited and not m.paused then
    local knows_some = knows and #wanted_of(queue) > 0
    if knows_some or redis.call('EXISTS', queue .. ':ready') == 1 then
      local room, opens_at = limiting().room_of(queue, m)
      if room == 0 and opens_at and (answer[4] == '' or opens_at < tonumber(answer[4])) then
        answer[4] = string.format('%.0f', opens_at)
      elseif room == 0 and not opens_at and knows_some then
        answer[3] = (answer[3] == '' and 'kept' or answer[3]) .. ' ' .. q
      end
    end
  end
end

for _ in pairs(made_due) do due_changed = true end
if due_changed then answer[2] = next_due() end

-- An enqueue wakes only one waiter, so a fetch that leaves jobs behind wakes the next one.
if leased > 0 then
  for _, queue in ipairs(queues) do
    if not meta(queue).paused and redis.call('EXISTS', queue .. ':waiters') == 1 then wake_for_room(queue) end
  end
end
if set_asides[1] then    -- returned as a run of the queue number 0
  answer[#answer + 1], answer[#answer + 2] = 0, #set_asides / 3
  take_set_asides(answer)
end
finish()
return answer
