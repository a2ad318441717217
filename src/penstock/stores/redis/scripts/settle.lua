-- Settle: apply transitions to running jobs whose lease is still held.
-- KEYS: the queues.  ARGV: clock, floor (as in enqueue), the most errors that a job keeps, number of profiles, the
-- profiles (digest, profile), number of transitions, the transitions, then runs: a header (number of the queue, number
-- of the transition, number of settlements, whether plain) and per settlement: id, prefix of the lease (generation and
-- token; '' for a Ref), and unless plain its result ('' or "r" and the bytes) and the jobs that follow.
-- transition: state, place (0 head, 1 tail, 2 own), charge, lost, delay, keep, throttle of the queue (ms), throttle of
-- the partition (ms), error, reason.
-- jobs that follow: number of the queue (0: it is on another server), id, form, tail, each with its size.
-- Returns {one status code per settlement (APPLIED, STALE, GONE of states.lua; LATER: not done, call again,
-- because ending the members of batches has taken long enough), the highest generation, names of the jobs that were
-- put into `out`, then the names of entries of `ends` (see queue.lua), which have a slash}.
-- include: size_check clock states queue profiles leases
local DAY = 86400000
local HEAD, TAIL, OWN = 0, 1, 2    -- QueuePosition, as layout.py numbers it
local floor, most_errors, profiles = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local inline_profile = profile_keeper(5, profiles)
local at = 5 + 2 * profiles

local transitions = {}
for i = 1, tonumber(ARGV[at]) do
  local t = {}
  local text, from = ARGV[at + i]
  t.state, t.place, t.charge, t.lost, t.delay, t.keep, t.throttle, t.throttle_partition, t.has_error, t.has_reason, from =
    struct.unpack('<BBBBddddBB', text)
  if t.has_error == 1 then t.error, from = struct.unpack('<I4c0', text, from) end
  if t.has_reason == 1 then t.reason = struct.unpack('<I4c0', text, from) end
  t.ends = t.state == COMPLETED or t.state == CANCELLED or t.state == DEAD
  t.removes = t.keep <= 0 and t.ends
  transitions[i] = t
end
at = at + 1 + #transitions

-- Reserve the places at the head of each queue first, so that the jobs of this call keep their order there.
local heads = {}
do
  local i = at
  while i <= #ARGV do
    local q, t, n, plain = struct.unpack('<BI2I2B', ARGV[i])
    if transitions[t].place == HEAD then heads[q] = (heads[q] or 0) + n end
    i = i + 1 + n * (plain == 1 and 2 or 4)
  end
  for q, n in pairs(heads) do
    local m = meta(KEYS[q])
    if not m.new then m.head = m.head - n end    -- do not create a queue that does not exist
    heads[q] = m.head
  end
end

local processed, failed, out = {}, {}, {}

local function count(q, t, n)
  if t.charge == 1 then processed[q] = (processed[q] or 0) + n end
  if t.has_error == 1 then failed[q] = (failed[q] or 0) + n end
end

local slow
local function slow_path()
  if slow then return slow end
  -- include: record partitions places insert

  local function apply(q, queue, id, job, lease, t, result)
    local asked, charged = bit.band(lease.flags, ASKED) ~= 0, bit.band(lease.flags, CHARGED) ~= 0
    if t.place == HEAD then
      job.place = heads[q]
      heads[q] = heads[q] + 1
    elseif t.place == TAIL then
      job.place, job.at_tail = count_up(meta(queue)), true
    end
    if t.throttle_partition > 0 and job.partition then throttle_partition(queue, id, job, now + t.throttle_partition, t.state == AVAILABLE) end
    -- the reason of a request to stop stays until the job has ended (text_encoding.reason_after)
    local stays = asked and t.state ~= COMPLETED and t.state ~= DEAD and (job.reason or t.state ~= CANCELLED)
    if not stays then job.reason = t.reason end
    job.state, job.asked, job.fresh = t.state, asked, false
    job.lost, job.fetched = job.lost + t.lost, lease.fetched
    if charged and t.charge == 1 then job.attempt = job.attempt + 1 end
    if t.error then add_error(job, t.error, most_errors) end
    if t.state == SCHEDULED or t.state == RETRYABLE then
      job.run = now + t.delay
    elseif t.state == SUSPENDED then
      job.run, job.expires = now + t.delay, nil    -- it has started in time; 'w': steps.lua
      if asked or (job.steps and redis.call('HDEL', steps_of(queue, job), 'w') == 1) then
        job.state, job.run = AVAILABLE, now
      end
    elseif t.state == AVAILABLE and t.place ~= OWN then
      job.run = now
    end
    job.ended, job.result = nil, nil
    if ended_state(t.state) then
      job.ended = now
      if result ~= '' then job.result = string.sub(result, 2) end
    end
    if job.unique then shift_key(queue, id, job, RUNNING_PHASE, phase_of(t.state)) end
    if not t.removes then return put(queue, id, job, now + t.keep) end
    if job.batch and batches().is_batch(job) then batches().end_members(queue, id, job, now) end
    remove(queue, id, job, true)
  end

  local function follow(queue, generation, blob)
    local i, n = 1, 0
    while i <= #blob do
      local q, id, form, tail
      q, id, form, tail, i = struct.unpack('<BI4c0I4c0I4c0', blob, i)
      n = n + 1
      if q == 0 then
        local name = string.format('%.0f.%.0f.%d', generation, now, n)    -- `now`, because a job may complete twice
        floor = count_up(meta(queue), floor)    -- keeps the order of the jobs that follow
        redis.call('HSET', queue .. ':out', name, struct.pack('<d', floor) .. tail)
        out[#out + 1] = name
      else
        local to = KEYS[q]
        local status, has
        if redis.call('HEXISTS', to .. ':jobs', id) == 0 then status, has = enqueue_status(to, form, true) end
        if status == REPLACED then
          replace_holder(to, has, form, tail)
        elseif status == NEW then
          local flags, stored = tail_of(tail, inline_profile(to, string.sub(tail, 2, 5)))
          floor = count_up(meta(to), floor)
          store_new(to, id, form, floor, flags, stored)
          floor = math.max(floor, minted)
          meta(to).enqueued = meta(to).enqueued + 1
        end
      end
    end
  end

  -- The job and its lease; nothing if one of them cannot be read: then the job was set aside.
  local function decode(queue, id, record, held)
    local ok, lease = pcall(read_held, held)
    if not ok then
      set_aside(queue, id, record, 'its lease cannot be read')
      return nil
    end
    local job, gone = readable(queue, id, record)
    if not gone then return job, lease end
  end

  slow = {apply = apply, follow = follow, decode = decode}
  return slow
end

local codes, made_room = {}, {}
while at <= #ARGV do
  local q, number, n, plain = struct.unpack('<BI2I2B', ARGV[at])
  local queue, t, width = KEYS[q], transitions[number], plain == 1 and 2 or 4
  local ids = {}
  for k = 1, n do ids[k] = ARGV[at + 1 + (k - 1) * width] end
  local held = get_many(queue .. ':held', ids)
  -- the usual case: completed, nothing to keep, and no wait for its end: then no record has to be read
  local quick = plain == 1 and t.removes and not t.error and redis.call('EXISTS', queue .. ':watchers') == 0
  local gone, orders, tokens, done, seen, unheld = {}, {}, {}, 0, {}, 0
  for k = 1, n do
    local id, lease = ids[k], held[k]
    local prefix = ARGV[at + 2 + (k - 1) * width]
    local code
    if not lease or seen[id] or string.sub(lease, 1, #prefix) ~= prefix then
      if seen[id] == 'removed' then
        code = GONE
      else
        code = redis.call('HEXISTS', queue .. ':jobs', id) == 1 and STALE or GONE
      end
    else
      local token, flags = token_and_flags(lease)
      local limited = flags >= LIMITED
      if limited then flags = flags - LIMITED end
      local shares_key = flags >= SHARES_KEY
      if shares_key and members_processed >= 2000 and t.ends then
        code = LATER
      else
        code, done = APPLIED, done + 1
        tokens[token] = (tokens[token] or 0) + 1
        orders[#orders + 1] = string.sub(lease, 1, 7) .. id
        gone[#gone + 1] = id
        if limited then made_room[queue] = true end
      end
      if code == LATER then
        seen[id] = nil
      elseif quick and not shares_key then
        seen[id] = 'removed'
      else
        seen[id] = 'applied'
        local record = redis.call('HGET', queue .. ':jobs', id)
        local job, decoded
        if record then job, decoded = slow_path().decode(queue, id, record, lease) end
        if record and not job then    -- the job was set aside: it is dead and has no lease
          code, done, tokens[token] = STALE, done - 1, tokens[token] - 1
        elseif record then
          slow.apply(q, queue, id, job, decoded, t, plain == 1 and '' or ARGV[at + 3 + (k - 1) * width])
          local following = plain == 1 and '' or ARGV[at + 4 + (k - 1) * width]
          if following ~= '' then    -- it may replace a job settled by this call, which must not look running
            in_steps('HDEL', queue .. ':held', {unpack(gone, unheld + 1)})
            unheld = #gone
            slow.follow(queue, decoded.generation, following)
          end
        else    -- another program has deleted the record: remove the lease, and continue with the others
          code, done, seen[id] = GONE, done - 1, 'removed'
        end
      end
    end
    codes[#codes + 1] = code
  end
  if done > 0 and t.throttle > 0 then limiting().throttle(queue, meta(queue), t.throttle) end
  if #gone > 0 then
    end_leases(queue, tokens, gone, orders)
    local removed = {}
    for id, how in pairs(seen) do
      if how == 'removed' then removed[#removed + 1] = id end
    end
    pcall(in_steps, 'HDEL', queue .. ':jobs', removed)    -- their leases have ended: an error here fails no call
    count(q, t, done)
  end
  at = at + 1 + n * width
end

local day = math.floor(now / DAY)
for q, queue in ipairs(KEYS) do
  for name, counted in pairs({processed = processed[q], failed = failed[q]}) do
    count_on(queue .. ':meta', name, counted)
    count_on(queue .. ':days', day .. '/' .. name, counted)
  end
end
finish()
for queue in pairs(made_room) do
  if not made_ready[queue] then wake_for_room(queue) end
end
for _, name in ipairs(new_ends) do out[#out + 1] = name end
return {table.concat(codes), string.format('%.0f', floor), out}
