-- The jobs of one state in order of enqueue, from the orders that the queue keeps anyway.

-- The priorities that have available jobs.
local function bands(queue)
  local found, from = {}, '-inf'
  while true do
    local name = redis.call('ZRANGEBYSCORE', queue .. ':ready', from, '+inf', 'LIMIT', 0, 1)[1]
    if not name then return found end
    local priority = tonumber(string.match(name, '^[^/]+'))
    found[#found + 1] = priority
    from = string.format('%.0f', (101 - priority) * BAND)
  end
end

local function add_ids(queue, into, ids)
  if #ids == 0 then return end
  local records = get_many(queue .. ':jobs', ids)
  for i, id in ipairs(ids) do
    if records[i] then
      local _, generation = struct.unpack('>BI7', records[i])
      into[#into + 1] = {generation, id, records[i]}
    end
  end
end

-- Fresh jobs of one priority that are older than `before`: the newest n of them, if `newest`; else the oldest.
local function add_fresh(queue, into, priority, before, n, newest)
  local first, last = segment_ranks(queue, priority)
  local rank, step = first, 1
  if newest then
    rank, step = segment_rank(queue, priority, before), -1
    if not rank then return end
  end
  local found = 0
  while found < n and rank >= first and rank <= last do
    local name = redis.call('ZRANGE', queue .. ':ready', rank, rank)[1]
    local of_segment = {}
    if not is_moved(name) then
      add_ids(queue, of_segment, redis.call('LRANGE', queue .. ':ready/' .. name, 0, -1))
    end
    for _, one in ipairs(of_segment) do
      if one[1] < before then
        into[#into + 1] = one
        found = found + 1
      end
    end
    rank = rank + step
  end
end

local function add_running(queue, into, before)
  local held = redis.call('HGETALL', queue .. ':held')
  for i = 1, #held, 2 do
    local generation = struct.unpack('>I7', held[i + 1])
    if generation < before then into[#into + 1] = {generation, held[i], false, held[i + 1]} end
  end
end

-- Up to n jobs of a state (7: running) that are older than `before`, the newest or the oldest of them first.
local function of_state(queue, state, before, n, newest)
  local found = {}
  if state == 7 then
    add_running(queue, found, before)
  else
    local index, limit = queue .. ':state/' .. state, string.format('(%.0f', before)
    local ids = newest and redis.call('ZREVRANGEBYSCORE', index, limit, '-inf', 'LIMIT', 0, n)
      or redis.call('ZRANGEBYSCORE', index, '-inf', limit, 'LIMIT', 0, n)
    add_ids(queue, found, ids)
    if state == GROUPED and newest then    -- the oldest are for purge, which leaves those in batches alone
      add_ids(queue, found, redis.call('ZREVRANGEBYSCORE', queue .. ':state/9+', limit, '-inf', 'LIMIT', 0, n))
    end
    if state == AVAILABLE then
      for _, priority in ipairs(bands(queue)) do add_fresh(queue, found, priority, before, n, newest) end
    end
  end
  return found
end

local function sort_by_age(found, newest)
  table.sort(found, function(a, b)
    if newest then return a[1] > b[1] end
    return a[1] < b[1]
  end)
end
