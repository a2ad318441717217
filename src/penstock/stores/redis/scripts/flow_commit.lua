-- Store a change of a flow, unless another change was stored since the caller has read it, and enqueue the jobs of nodes
-- that start.
-- KEYS: the queue of the flow, then other queues.  ARGV: clock, floor (as in enqueue), id of the flow, version that the
-- caller has read ('' if there was no flow), the new version (random: no number may come twice if the server loses its
-- last moments), time of creation, when to look at the flow again ('' never, "gone": remove the flow), `q` that the
-- caller has added to the flow, `s`, 1 if `q` must be the same still, number of profiles, the profiles (digest, profile),
-- number of nodes to check with the fields and their first bytes, number of fields to set, the fields and values, number of
-- fields to remove, the fields, number of parts of entries of `ends` that this change has counted, the parts (number of the
-- queue, name; all must be there still), number of parts of what a new flow starts with, the parts (number of a queue, number of jobs),
-- then the jobs that follow, as in settle.lua, the id by which its end is awaited, if it is over now, the id of a
-- job of this queue to wake, the id of the job that waits for the flow, and "new", or "open" or "closed" if the flow is so
-- now and was not.
-- flow/ID is a hash: `v` version, `head` flow, `o` 1 if it is over, `s` 1 if scripts may count ends without a change of `v`
-- (queue.lua), `q` how many ends they have counted since `head`; and per node N: `nN` its state, `jN` its job, `iN` inputs,
-- `rN` result; and `aKEY`, if a call with this key has added members; `p` if the job that waits for
-- the flow has ended ('c': completed), and `advance_flows` has not seen to it.
-- flows: the ids by time of creation. flows/look: the ids by the instant at which `advance_flows` has something to do.
-- Returns {1 if stored, the highest generation, names of the jobs put into `out`}; or if a queue does not take the flow,
-- {2, the highest generation, {number of the queue, and why, as `not_admitted` says}}. A job whose id is taken is not stored;
-- that ends its node, by an entry of `ends`.
-- include: clock states queue sound profiles record partitions places insert
local home, id = KEYS[1], ARGV[3]
local flow, floor, profiles = home .. ':flow/' .. id, tonumber(ARGV[2]), tonumber(ARGV[11])
local version = redis.call('HGET', flow, 'v') or ''
local refused = {0, string.format('%.0f', floor), {}}
if version ~= ARGV[4] then return refused end
if ARGV[7] == 'gone' then
  redis.call('UNLINK', flow)
  redis.call('ZREM', home .. ':flows', id)
  redis.call('ZREM', home .. ':flows/look', id)
  return {1, string.format('%.0f', floor), {}}
end
local more = (tonumber(redis.call('HGET', flow, 'q')) or 0) - tonumber(ARGV[8])    -- ends since the caller has read it
if ARGV[10] == '1' and more ~= 0 then return refused end
local inline_profile = profile_keeper(12, profiles)
local at = 12 + 2 * profiles

local function next_list()
  local n, list = tonumber(ARGV[at]), {}
  for i = 1, n do list[i] = ARGV[at + i] end
  at = at + 1 + n
  return list
end

local checks, names = next_list(), {}
for i = 1, #checks, 2 do names[#names + 1] = checks[i] end
for i, found in ipairs(#names > 0 and get_many(flow, names) or {}) do    -- has a script counted an end meanwhile?
  local expected = checks[2 * i]
  if string.sub(found or '', 1, #expected) ~= expected then return refused end
end
-- Has another process counted one of these ends, or has the server lost it after the caller read it?
local sets, removed, counted, starts = next_list(), next_list(), next_list(), next_list()
for i = 1, #counted, 2 do
  if redis.call('HEXISTS', KEYS[tonumber(counted[i])] .. ':ends', counted[i + 1]) == 0 then return refused end
end

for i = 1, #starts, 2 do
  local status, refusal = not_admitted(KEYS[tonumber(starts[i])], tonumber(starts[i + 1]))
  if status then return {2, refused[2], {starts[i], status, refusal}} end
end
redis.call('ZCARD', home .. ':flows')    -- as sound.lua: an error comes before the first write
redis.call('ZCARD', home .. ':flows/look')
do
  local sent, blob, i, q, form, tail, _ = {}, ARGV[at], 1, nil, nil, nil, nil
  for k = 12, 11 + 2 * profiles, 2 do sent[ARGV[k]] = ARGV[k + 1] end
  while i <= #blob do
    q, _, form, tail, i = struct.unpack('<BI4c0I4c0I4c0', blob, i)
    if q > 0 then
      ask_for_lists(KEYS[q], string.byte(form, 2) - 100)
      ask_for_keys_of(KEYS[q], form, sent[string.sub(tail, 2, 5)])
    end
  end
end

sets[#sets + 1], sets[#sets + 2] = 'v', ARGV[5]
sets[#sets + 1], sets[#sets + 2] = 's', ARGV[9]
sets[#sets + 1], sets[#sets + 2] = 'q', more
in_steps('HSET', flow, sets)
in_steps('HDEL', flow, removed)
-- in this step: a server that loses its last moments must not lose the count and keep the removal of its entry
for i = 1, #counted, 2 do redis.call('HDEL', KEYS[tonumber(counted[i])] .. ':ends', counted[i + 1]) end
redis.call('ZADD', home .. ':flows', ARGV[6], id)

-- Note with the job that waits for the flow whether the flow is open. If that job has ended, it can no longer see to it.
local function note_parent(name, news)
  local ok, job = pcall(read, redis.call('HGET', home .. ':jobs', name))
  if news == 'new' and (not ok or ended_state(job.state)) then return redis.call('HSET', flow, 'p', '1') end
  if not ok or not job.steps then return end
  local steps, others, i, one = steps_of(home, job), {}, 1, nil
  local ids = redis.call('HGET', steps, OPEN_FLOWS) or ''
  while i <= #ids do
    one, i = struct.unpack('<Bc0', ids, i)
    if one ~= id then others[#others + 1] = struct.pack('<Bc0', #one, one) end
  end
  if news ~= 'closed' then others[#others + 1] = struct.pack('<Bc0', #id, id) end
  if #others > 0 then
    redis.call('HSET', steps, OPEN_FLOWS, table.concat(others))
  else
    redis.call('HDEL', steps, OPEN_FLOWS)
  end
end

-- Store a job. If it is available at once and has no other options, it is one of the fresh jobs, as a plain job is.
local fresh = {}
local function store(to, job, form, flags, stored)
  local facts = first_facts(floor, form)
  local other = facts.unique or facts.partition or facts.tenant or facts.batch or facts.expires
  if other or facts.state ~= AVAILABLE or facts.run ~= now or meta(to).fair or ms_of(floor) ~= now then
    return store_new(to, job, form, floor, flags, stored)
  end
  facts.tail_flags, facts.tail, facts.fresh = flags, stored, true
  redis.call('HSET', to .. ':jobs', job, write(facts))
  fresh[to] = fresh[to] or {}
  local list = fresh[to][facts.priority] or {first = floor}
  fresh[to][facts.priority] = list
  list[#list + 1] = job
end

local out, blob, i, n = {}, ARGV[at], 1, 0
while i <= #blob do
  local q, job, form, tail
  q, job, form, tail, i = struct.unpack('<BI4c0I4c0I4c0', blob, i)
  n = n + 1
  floor = count_up(meta(home), floor)
  if q == 0 then
    local name = string.format('%.0f.%.0f.%d', floor, now, n)
    redis.call('HSET', home .. ':out', name, struct.pack('<d', floor) .. tail)
    out[#out + 1] = name
  else
    local to = KEYS[q]
    if redis.call('HEXISTS', to .. ':jobs', job) == 1 or enqueue_status(to, form, true) ~= NEW then
      note_flow(to, job, first_facts(0, form), RUNNING)
    else
      local flags, stored = tail_of(tail, inline_profile(to, string.sub(tail, 2, 5)))
      floor = count_up(meta(to), floor)
      store(to, job, form, flags, stored)
      floor = math.max(floor, minted)
      meta(to).enqueued = meta(to).enqueued + 1
    end
  end
end
for to, lists in pairs(fresh) do
  for priority, list in pairs(lists) do
    push_ready(to, priority, list.first, list)
    meta(to).fresh = meta(to).fresh + #list
  end
  made_ready[to] = true
end
if ARGV[at + 4] ~= '' then note_parent(ARGV[at + 3], ARGV[at + 4]) end
local look = redis.call('HEXISTS', flow, 'p') == 1 and '0' or ARGV[7]
if look == '' then
  redis.call('ZREM', home .. ':flows/look', id)
else
  redis.call('ZADD', home .. ':flows/look', look, id)
end
if ARGV[at + 1] ~= '' then publish_end(home, ARGV[at + 1], '') end
local ok, job = pcall(read, ARGV[at + 2] ~= '' and redis.call('HGET', home .. ':jobs', ARGV[at + 2]))
if ok then    -- as for a signal that has come (see deliver_signals.lua)
  if redis.call('HEXISTS', home .. ':held', ARGV[at + 2]) == 1 then
    if job.steps then redis.call('HSET', steps_of(home, job), 'w', '1') end
  elseif job.state == SUSPENDED then
    take(home, ARGV[at + 2], job)
    job.run = now
    put_available(home, ARGV[at + 2], job)
  end
end
finish()
return {1, string.format('%.0f', floor), out}
