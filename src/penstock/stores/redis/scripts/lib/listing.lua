-- List the jobs in one state in order of enqueue, from the indexes of a queue.
-- needs: states queue record partitions places

-- The priorities that have available jobs.
local function bands(queue)
  local found, from = {}, '-inf'
  while true do
    local name = redis.call('ZRANGEBYSCORE', queue .. ':ready', from, '+inf', 'LIMIT', 0, 1)[1]
    if not name then return found end
    local priority = tonumber(string.match(name, '^[^/]+'))
    if priority then
      found[#found + 1] = priority
      from = string.format('%.0f', (101 - priority) * BAND)
    else    -- not written by Penstock
      redis.call('ZREM', queue .. ':ready', name)
    end
  end
end

-- Append jobs to `into`. The generation of an unreadable record is its score in `index`; in a list, which has no index,
-- it is the generation of the previous job plus 1, from `from` on.
local function add_ids(queue, into, ids, index, from)
  if #ids == 0 then return end
  local records, generation = get_many(queue .. ':jobs', ids), (from or 1) - 1
  for i, id in ipairs(ids) do
    local record = records[i]
    if record and (is_plain(record) or pcall(read, record)) then
      local _
      _, generation = struct.unpack('>BI7', record)
    else
      generation = index and tonumber(redis.call('ZSCORE', index, id) or 0) or generation + 1
    end
    if record then into[#into + 1] = {generation, id, record} end
  end
end

local function add_segment(queue, into, name)
  add_ids(queue, into, redis.call('LRANGE', queue .. ':ready/' .. name, 0, -1), nil, first_place_of(name))
end

-- Append the oldest n fresh jobs of one priority.
local function add_fresh(queue, into, priority, n)
  local rank, last = segment_ranks(queue, priority)
  local enough = #into + n
  while #into < enough and rank <= last do
    local name = redis.call('ZRANGE', queue .. ':ready', rank, rank)[1]
    if not is_moved(name) then add_segment(queue, into, name) end
    rank = rank + 1
  end
end

-- The generation of a running job, from its lease, or if that is unreadable from its record. A lease is not decoded: its
-- sizes are compared, as read_held does.
local function generation_of_held(queue, id, held)
  local token = string.byte(held, 8)
  local rest = token and #held - token - 19
  if rest and rest >= 0 and rest >= string.byte(held, token + 18) + 256 * string.byte(held, token + 19) then
    return (struct.unpack('>I7', held))
  end
  local ok, job = pcall(read, redis.call('HGET', queue .. ':jobs', id))
  return ok and job.generation or 0
end

local function sort_by_age(found, newest)
  table.sort(found, function(a, b)
    if newest then return a[1] > b[1] end
    return a[1] < b[1]
  end)
end

-- At least the first n running jobs, if there are as many: the newest that are older than `from`, or the oldest from it on.
-- `worker`: only jobs whose leases contain this text. No index has running jobs by age, so each call passes all of them.
local function first_running(queue, n, newest, from, worker)
  local held, found, edge = redis.call('HGETALL', queue .. ':held'), {}, nil
  for i = 1, #held, 2 do
    if worker == '' or string.find(held[i + 1], worker, 1, true) then
      local generation = generation_of_held(queue, held[i], held[i + 1])
      local inside = not from or (generation < from) == newest
      local beyond = edge and generation ~= edge and (generation < edge) == newest
      if inside and not beyond then found[#found + 1] = {generation, held[i], false, held[i + 1]} end
      if #found == 2 * n then
        sort_by_age(found, newest)
        for k = 2 * n, n + 1, -1 do found[k] = nil end
        edge = found[n][1]
      end
    end
  end
  sort_by_age(found, newest)
  return found
end

-- The oldest n jobs in a state, without running ones and the members of batches; there may be more.
local function oldest_of(queue, state, n)
  local found = {}
  local index = queue .. ':state/' .. state
  add_ids(queue, found, redis.call('ZRANGE', index, 0, n - 1), index)
  if state == AVAILABLE then
    for _, priority in ipairs(bands(queue)) do add_fresh(queue, found, priority, n) end
  end
  return found
end
