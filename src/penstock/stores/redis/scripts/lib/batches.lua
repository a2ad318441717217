-- Collecting batches. `batches` maps the name of each (task, zero byte, batch key) to the rules of the last member
-- (size, wait, grace), and the times at which the last and the first member joined. `batch/NAME` has its members,
-- by place. In `due` a collecting batch is NAME after bytes that no generation has. The batch part of a job's record:
-- size, wait, grace, key, and its role: nothing (collecting), "m" and the id of its batch, or "b" and its members' ids,
-- each with its size. Members of a batch job are in `state/9+`.
-- needs: clock states queue record partitions places

local BATCH_IN_DUE = string.rep('\255', 7)    -- before its name in `due`, in place of a generation
local MEMBER, BATCH = 'm', 'b'    -- first byte of the role
local MEMBER_BYTE, BATCH_BYTE = string.byte(MEMBER), string.byte(BATCH)

local function part_at(job)
  return 21 + struct.unpack('<I2', job.batch, 19)
end

local function part_of(job)
  return string.sub(job.batch, part_at(job))
end

local function with_part(job, part)
  return string.sub(job.batch, 1, part_at(job) - 1) .. part
end

local function is_batch(job)
  return string.byte(job.batch, part_at(job)) == BATCH_BYTE
end

-- The stored id of the batch that the job is or was a member of, or nothing.
local function batch_of(job)
  local part = part_of(job)
  if string.byte(part) == MEMBER_BYTE then return string.sub(part, 2) end
end

local function in_batch(job)
  return job.state == COLLECTING and string.byte(job.batch, part_at(job)) == MEMBER_BYTE
end

local names = {}    -- cache, by queue, profile and key

local function batch_name(queue, job)
  local size = struct.unpack('<I2', job.batch, 19)
  local key = string.sub(job.batch, 21, 20 + size)
  local known = job.tail_flags < 32 and queue .. string.sub(job.tail, 1, 4) .. key
  if known and names[known] then return names[known] end
  local _, task = profile(queue, job)
  local name = task .. '\0' .. key
  if known then names[known] = name end
  return name
end

local function set_due(queue, name, due)
  if due then
    redis.call('ZADD', queue .. ':due', due, BATCH_IN_DUE .. name)
    made_due[queue] = math.min(made_due[queue] or due, due)
  else
    redis.call('ZREM', queue .. ':due', BATCH_IN_DUE .. name)
  end
end

local function due_of(wait, grace, first, last)
  local due
  if wait ~= NONE then due = first + wait end
  if grace ~= NONE then due = math.min(due or last + grace, last + grace) end
  return due
end

-- The rules of a collecting batch, and when its last member joined; if they are not stored, those of this member.
local function terms_of_batch(queue, name, job)
  local known = redis.call('HGET', queue .. ':batches', name)
  if known and #known == 34 then return struct.unpack('<I2ddd', known) end
  local size, wait, grace = struct.unpack('<I2dd', job.batch)
  return size, wait, grace, job.run
end

-- Update the stored data of a collecting batch after members have left.
local recount
function recount(queue, name)
  local first_id = redis.call('ZRANGE', queue .. ':batch/' .. name, 0, 0)[1]
  if not first_id then
    redis.call('HDEL', queue .. ':batches', name)
    set_due(queue, name, nil)
    return
  end
  local record = redis.call('HGET', queue .. ':jobs', first_id)
  local job = record and readable(queue, first_id, record)
  if not job or job.state ~= COLLECTING then    -- another program has deleted or overwritten it
    redis.call('ZREM', queue .. ':batch/' .. name, first_id)
    return recount(queue, name)
  end
  local size, wait, grace, last = terms_of_batch(queue, name, job)
  redis.call('HSET', queue .. ':batches', name, struct.pack('<I2dddd', size, wait, grace, last, job.run))
  set_due(queue, name, due_of(wait, grace, job.run, last))
end

local function put_collecting(queue, id, job)
  if in_batch(job) then
    redis.call('ZADD', queue .. IN_BATCH, job.generation, id)
  else
    redis.call('ZADD', queue .. ':batch/' .. batch_name(queue, job), job.place, id)
    redis.call('ZADD', queue .. ':state/' .. COLLECTING, job.generation, id)
    if job.expires then redis.call('ZADD', queue .. ':expiring', job.expires, order(job, id)) end
  end
  redis.call('HSET', queue .. ':jobs', id, write(job))
end

local function take_collecting(queue, id, job)
  if in_batch(job) then
    redis.call('ZREM', queue .. IN_BATCH, id)
    return
  end
  local name = batch_name(queue, job)
  redis.call('ZREM', queue .. ':batch/' .. name, id)
  redis.call('ZREM', queue .. ':state/' .. COLLECTING, id)
  if job.expires then redis.call('ZREM', queue .. ':expiring', order(job, id)) end
  recount(queue, name)
end

-- ── making the batch job ──

local function text_of(id)
  if #id ~= 14 and #id ~= 16 then return (string.gsub(id, '^%z+', '')) end
  local hex = string.gsub(id, '.', function(c) return string.format('%02x', string.byte(c)) end)
  if #id == 14 then
    hex = '01' .. string.sub(hex, 1, 10) .. '7' .. string.sub(hex, 11, 13) .. '8' .. string.sub(hex, 14)
  end
  return string.format('%s-%s-%s-%s-%s', string.sub(hex, 1, 8), string.sub(hex, 9, 12), string.sub(hex, 13, 16),
    string.sub(hex, 17, 20), string.sub(hex, 21))
end

-- The id as batch.batch_id makes it, in the form that layout.py stores.
local function free_id(queue, first)
  local stem, n = string.sub(text_of(first), 1, 110) .. '.batch', 1
  while true do
    local text = stem .. (n > 1 and n or '')
    local id = ((#text == 13 or #text == 15) and '\0\0' or '\0') .. text
    if redis.call('HEXISTS', queue .. ':jobs', id) == 0 then return id end
    n = n + 1
  end
end

-- The parts of a tail: profile, optional fields (profiles.Extra), payload.
local function tail_parts(job)
  local at = 5
  if job.tail_flags >= 32 then at = 3 + struct.unpack('<I2', job.tail) end
  local head, extra = string.sub(job.tail, 1, at - 1), nil
  if bit.band(job.tail_flags, 16) ~= 0 then extra, at = struct.unpack('<I4c0', job.tail, at) end
  return head, extra, string.sub(job.tail, at)
end

-- Types of the fields of profiles.Profile and profiles.Extra, which a member passes on to its batch unread.
local PROFILE_TYPES = {'string', 'number?', 'number', 'kind?', 'number', 'boolean', 'number?', 'boolean?'}
local EXTRA_TYPES = {
  'number?', 'number?', 'number?', 'number?', 'number?', 'named?', 'texts?', 'named?', 'named?',
}

local function has_type(value, wanted)
  local kind, optional = string.match(wanted, '^(%a+)(%??)$')
  if value == nil then return optional == '?' end
  if kind == 'kind' then return type(value) == 'table' and type(value.kind) == 'string' end
  if kind == 'named' then return type(value) == 'table' and type(value[1]) == 'string' end
  if kind ~= 'texts' then return type(value) == kind end
  for name, text in pairs(type(value) == 'table' and value or {false}) do
    if type(name) ~= 'string' or type(text) ~= 'string' then return false end
  end
  return true
end

local function have_types(packed, types)
  local ok, values = pcall(cmsgpack.unpack, packed)
  if not ok or type(values) ~= 'table' then return false end
  for i, wanted in ipairs(types) do
    if not has_type(values[i], wanted) then return false end
  end
  return true
end

local valid_profiles = {}

-- Whether a worker can read the job, as far as a script can check this.
local function readable_by_workers(queue, job)
  local ok, head, extra = pcall(tail_parts, job)
  if not ok or (extra and not have_types(extra, EXTRA_TYPES)) then return false end
  local key = queue .. head
  if valid_profiles[key] == nil then
    local _, _, facts = profile(queue, job)
    valid_profiles[key] = have_types(facts, PROFILE_TYPES)
  end
  return valid_profiles[key]
end

-- The tail of a batch job: the profile and headers (field 7 of profiles.Extra) of its first member, and all payloads.
local function tail_of_batch(members)
  local first = members[1][2]
  local head, extra = tail_parts(first)
  local payloads = {}
  for i = 1, #members do
    local _, _, payload = tail_parts(members[i][2])
    payloads[i] = payload
  end
  local flags = first.tail_flags - bit.band(first.tail_flags, 16)
  local read_it, facts = pcall(cmsgpack.unpack, extra or '\144')
  local headers = read_it and type(facts) == 'table' and facts[7]
  if headers then
    local text = '\151\0\192\192\192\192\192' .. cmsgpack.pack(headers)
    head, flags = head .. struct.pack('<I4c0', #text, text), flags + 16
  end
  return flags, head .. '[[' .. table.concat(payloads, ',') .. ']]'
end

-- Make a batch job; members: pairs of id and job, which must be in no index. Returns the stored id of the batch job.
local function make_batch(queue, members)
  local id, priority, ids, written, by_age = free_id(queue, members[1][1]), -100, {}, {}, {}
  local flags, tail = tail_of_batch(members)
  for i, member in ipairs(members) do
    local job = member[2]
    job.state, job.expires, job.batch = COLLECTING, nil, with_part(job, MEMBER .. id)
    job.fresh, job.moved = false, false
    priority = math.max(priority, job.priority)
    ids[i] = string.char(#member[1]) .. member[1]
    written[2 * i - 1], written[2 * i] = member[1], write(job)
    by_age[2 * i - 1], by_age[2 * i] = job.generation, member[1]
  end
  in_steps('HSET', queue .. ':jobs', written)
  in_steps('ZADD', queue .. IN_BATCH, by_age)
  local m = meta(queue)
  minted = count_up(m, minted)
  if m.size then m.size = m.size + 1 end
  put(queue, id, {
    state = AVAILABLE, generation = minted, priority = priority, enqueued = now, run = now, place = minted,
    attempt = 0, lost = 0, tail_flags = flags, tail = tail, at_tail = true,
    batch = with_part(members[1][2], BATCH .. table.concat(ids)),
  })
  members_processed = members_processed + #members
  return id
end

-- Make a batch job of the first members of a collecting batch; returns its id, nothing if all members have expired.
local function flush(queue, name)
  local known = redis.call('HGET', queue .. ':batches', name)
  if not known or #known ~= 34 then    -- another program has deleted or overwritten it
    recount(queue, name)
    known = redis.call('HGET', queue .. ':batches', name)
    if not known then return nil end
  end
  local size = struct.unpack('<I2', known)
  local ids = redis.call('ZRANGE', queue .. ':batch/' .. name, 0, size - 1)
  local records, members, expiring, made = get_many(queue .. ':jobs', ids), {}, {}, nil
  redis.call('ZREMRANGEBYRANK', queue .. ':batch/' .. name, 0, #ids - 1)
  in_steps('ZREM', queue .. ':state/' .. COLLECTING, ids)
  for i, id in ipairs(ids) do
    local job, gone
    if records[i] then job, gone = readable(queue, id, records[i], true) end
    if job and not gone and not readable_by_workers(queue, job) then
      job, gone = set_aside(queue, id, records[i], why_not('its task or options are none'), true), true
    end
    if job and not gone and job.expires then expiring[#expiring + 1] = order(job, id) end
    if not job or gone or job.state ~= COLLECTING then
      members_processed = members_processed + 1
    elseif job.expires and job.expires <= now then
      end_queued(queue, id, job, EXPIRED)
      members_processed = members_processed + 1
    else
      members[#members + 1] = {id, job}
    end
  end
  in_steps('ZREM', queue .. ':expiring', expiring)
  if #members > 0 then made = make_batch(queue, members) end
  recount(queue, name)
  return made
end

local function is_due(queue, name)
  local due = redis.call('ZSCORE', queue .. ':due', BATCH_IN_DUE .. name)
  return due and tonumber(due) <= now
end

-- Let a member that is in no index, and has its place, join its collecting batch.
local function join(queue, id, job)
  job.state, job.run = COLLECTING, now
  put_collecting(queue, id, job)
  local name = batch_name(queue, job)
  local size, wait, grace = struct.unpack('<I2dd', job.batch)
  local known = redis.call('HGET', queue .. ':batches', name)
  local first = known and #known == 34 and struct.unpack('<d', known, 27) or now
  redis.call('HSET', queue .. ':batches', name, struct.pack('<I2dddd', size, wait, grace, now, first))
  set_due(queue, name, due_of(wait, grace, first, now))
  local n = redis.call('ZCARD', queue .. ':batch/' .. name)
  while n > 0 and (n >= size or is_due(queue, name)) do
    flush(queue, name)
    n = redis.call('ZCARD', queue .. ':batch/' .. name)
  end
end

-- ── the members of a batch job ──

local function each_member(queue, id, batch, act)
  local part, at, ids = part_of(batch), 2, {}
  while at <= #part do
    ids[#ids + 1], at = struct.unpack('<Bc0', part, at)
  end
  local records = #ids > 0 and get_many(queue .. ':jobs', ids) or {}
  for i, member_id in ipairs(ids) do
    if records[i] then
      local member, gone = readable(queue, ids[i], records[i])
      if not gone and member.batch and batch_of(member) == id then act(member_id, member) end
    end
  end
  members_processed = members_processed + #ids
end

local function end_members(queue, id, batch, over)
  local gone = {}
  each_member(queue, id, batch, function(member_id, member)
    if member.state ~= COLLECTING then return end    -- an operator has completed it
    gone[#gone + 1] = member_id
    member.state, member.ended, member.reason = batch.state, batch.ended, batch.reason
    if member.unique then shift_key(queue, member_id, member, QUEUED_PHASE, phase_of(batch.state)) end
    put(queue, member_id, member, over)
  end)
  in_steps('ZREM', queue .. IN_BATCH, gone)
end

local function remove_members(queue, id, batch, forgotten)
  each_member(queue, id, batch, function(member_id, member)
    take(queue, member_id, member)
    member.counted = batch.counted
    remove(queue, member_id, member, forgotten)
  end)
end

-- Make the members of an ended batch COLLECTING again, except those in the state `stays`.
local function bring_back_members(queue, id, batch, stays)
  each_member(queue, id, batch, function(member_id, member)
    if member.state == stays then return end
    take(queue, member_id, member)
    local before = phase_of(member.state)
    member.state, member.ended, member.reason = COLLECTING, nil, nil
    if member.unique then shift_key(queue, member_id, member, before, QUEUED_PHASE) end
    if member.flow then note_flow(queue, member_id, member, AVAILABLE) end
    put_collecting(queue, member_id, member)
  end)
end
