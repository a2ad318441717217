-- One step of a search through the jobs of a queue, in order of enqueue or of a time, or in ready order.
-- KEYS: the queue.  ARGV: clock, order (enqueued, due, ended or ready), descending (1 or 0), start ('': none) and its
-- generation, stop ('': none), states (numbers, separated by commas; 7: running), the most jobs to return, to pass, and bytes
-- to pass, text that a record contains ('': any; lower case), task ('': any), 1 if a record may contain a backslash instead of
-- the text, text that the leases of running jobs contain ('': any), id at the start in ready order.
-- Start and stop are generations, or times; jobs of one time are in the order of their generations. Descending, the step
-- passes jobs before the start and not before the stop; else those from the start on and before the stop. In ready order, which
-- is ascending, the number is the negative priority and the generation is the place; the step passes jobs after the start.
-- Returns {1 if it stopped early, or 0; number, generation and id of the last job; how many jobs it has passed; per job that
-- may match: number, generation, id, record, lease or nothing}; a number is the generation, or the time.
-- include: clock states queue record partitions places listing

local queue, order_by, down = KEYS[1], ARGV[2], ARGV[3] == '1'
local start, start_generation, stop = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local most_found, most_seen, most_bytes = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local CHUNK = math.max(10, math.min(50, most_found))    -- entries, or records of a list, that are read at once
local needle, task, escapes, worker, start_id = ARGV[11], ARGV[12], ARGV[13] == '1', ARGV[14], ARGV[15]
local wanted, jobs = {}, queue .. ':jobs'
for state in string.gmatch(ARGV[7], '%d+') do wanted[tonumber(state)] = true end

local function whole(number) return string.format('%.0f', number) end

-- The generation in an entry of the index of a time, which begins with it. Texts are not compared: that follows the locale.
local function generation_in(entry) return (struct.unpack('>I7', entry .. '\0\0\0\0\0\0\0')) end

-- ── sources: iterators over number, generation, id, record or nil, lease or nil ──

-- The next chunk of an index of generations.
local function chunk_of(index, from)
  if down then return redis.call('ZREVRANGEBYSCORE', index, from, '-inf', 'WITHSCORES', 'LIMIT', 0, CHUNK) end
  return redis.call('ZRANGEBYSCORE', index, from, '+inf', 'WITHSCORES', 'LIMIT', 0, CHUNK)
end

local function by_generation(index)
  local some, at = {}, 1
  local from = start and (down and '(' or '') .. whole(start) or (down and '+inf' or '-inf')
  return function()
    if at > #some then
      some, at = chunk_of(index, from), 1
      if #some == 0 then return nil end
      from = '(' .. whole(tonumber(some[#some]))
    end
    at = at + 2
    local generation = tonumber(some[at - 1])
    return generation, generation, some[at - 2]
  end
end

local function running()
  local found, at = first_running(queue, most_seen, down, start, worker), 0
  return function()
    at = at + 1
    local one = found[at]
    if one then return one[1], one[1], one[2], nil, one[4] end
  end
end

-- The index of the first job of a ready list at or after a place.
local function index_at(list, place)
  local low, high = 0, redis.call('LLEN', list) - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    if place_of(redis.call('HGET', jobs, redis.call('LINDEX', list, middle))) < place then
      low = middle + 1
    else
      high = middle - 1
    end
  end
  return low
end

-- Jobs in the ready lists of one priority, by place, from a place on. Without those that were moved to a list, these have been
-- available since their enqueue: their places are their generations.
local function listed(priority, from, with_moved)
  local first, last = segment_ranks(queue, priority)
  local rank, step = down and last or first, down and -1 or 1
  local list, ids, records, at = nil, {}, {}, 1
  if from then rank = segment_rank(queue, priority, down and from - 1 or from) or (down and first - 1 or first) end
  local index
  local function open_list()
    while rank >= first and rank <= last do
      local name = redis.call('ZRANGE', queue .. ':ready', rank, rank)[1]
      rank = rank + step
      if with_moved or not is_moved(name) then
        list = queue .. ':ready/' .. name
        index = from and index_at(list, from) or (down and redis.call('LLEN', list) or 0)
        if down then index = index - 1 end
        from = nil
        return true
      end
      from = nil
    end
  end
  local function more_ids()
    if index < 0 then return {} end
    local found = down and redis.call('LRANGE', list, math.max(0, index - CHUNK + 1), index)
      or redis.call('LRANGE', list, index, index + CHUNK - 1)
    index = index + step * CHUNK
    return found
  end
  return function()
    while at > #ids do
      ids, at = list and more_ids() or {}, 1
      if #ids > 0 then
        records = get_many(jobs, ids)
      elseif not open_list() then
        return nil
      end
    end
    at = at + 1
    local n = down and #ids - at + 2 or at - 1
    local place = place_of(records[n])
    return place, place, ids[n], records[n]
  end
end

-- The rank of the first entry of an index that is at or after a score; `is_before` tells which entries with this score are not.
local function rank_from(index, score, is_before)
  local low = redis.call('ZCOUNT', index, '-inf', '(' .. whole(score))
  local high = redis.call('ZCOUNT', index, '-inf', whole(score)) - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    if is_before(redis.call('ZRANGE', index, middle, middle)[1]) then low = middle + 1 else high = middle - 1 end
  end
  return low
end

-- Entries of an index before (descending) a rank, or from it on: score, entry.
local function by_rank(index, rank)
  local some, at = {}, 1
  if down then rank = rank - 1 end
  return function()
    if at > #some then
      if rank < 0 then return nil end
      local name = down and 'ZREVRANGE' or 'ZRANGE'
      local from = down and redis.call('ZCARD', index) - 1 - rank or rank
      some, at = redis.call(name, index, from, from + CHUNK - 1, 'WITHSCORES'), 1
      rank = rank + (down and -CHUNK or CHUNK)
    end
    at = at + 2
    return tonumber(some[at - 1]), some[at - 2]
  end
end

local function by_time(index)
  local rank = down and redis.call('ZCARD', index) or 0
  if start then rank = rank_from(index, start, function(entry) return generation_in(entry) < start_generation end) end
  local next_entry = by_rank(index, rank)
  return function()
    local time, entry = next_entry()
    if entry then return time, generation_in(entry), string.sub(entry, 8) end
  end
end

-- Available jobs of one priority, in ready order: those of its lists, and those of `again`.
local function ready(priority)
  local begun = start == -priority
  local from = begun and start_generation or nil
  local again, rank = queue .. ':again/' .. priority, 0
  if from then rank = rank_from(again, from, function(id) return id <= start_id end) end
  local next_listed, next_again = listed(priority, from and from + 1, true), by_rank(again, rank)

  local function from_lists()
    local place, _, id, record = next_listed()
    if place then return 0 - priority, place, id, record end
  end

  local function from_again()
    local place, id = next_again()
    if id then return 0 - priority, place, id end
  end

  return from_lists, from_again
end

local function advanced(part)
  part.at, part.generation, part.id, part.record, part.lease = part.next()
  return part.at
end

local function sources()
  local found = {}
  local function add(source)
    local part = {next = source}
    if advanced(part) then found[#found + 1] = part end
  end
  if order_by == 'due' then
    add(by_time(queue .. ':due'))
    return found
  end
  if order_by == 'ready' then
    for _, priority in ipairs(bands(queue)) do
      if not start or start <= -priority then
        local from_lists, from_again = ready(priority)
        add(from_lists)
        add(from_again)
      end
    end
    return found
  end
  for state in pairs(wanted) do
    if order_by == 'ended' then
      add(by_time(queue .. ':ended/' .. state))
    elseif state == RUNNING then
      add(running())
    else
      add(by_generation(queue .. ':state/' .. state))
      if state == COLLECTING then add(by_generation(queue .. IN_BATCH)) end
      if state == AVAILABLE then
        for _, priority in ipairs(bands(queue)) do add(listed(priority, start)) end
      end
    end
  end
  return found
end

-- ── which jobs may match ──

local of_task = {}    -- whether jobs with this profile are of the task

local function has_task(record)
  local flags, at = string.byte(record), 10
  if bit.band(flags, LONG) ~= 0 then at = at + struct.unpack('<I4', record, 10) end
  local inline = bit.band(flags, 32) ~= 0
  local digest = inline and struct.unpack('<I2c0', record, at) or string.sub(record, at, at + 3)
  if of_task[digest] == nil then
    local known = inline and digest or redis.call('HGET', queue .. ':profiles', digest)
    local _, name = struct.unpack('<dI2c0', known)
    of_task[digest] = name == task
  end
  return of_task[digest]
end

local like_hex = string.find(needle, '^[%x-]+$')

-- The id of a stored id, as layout.py writes it: only if it may contain the text.
local function id_text(id)
  if #id == 14 then
    if not like_hex then return '' end
    local a, b, c, d, e, f, g = string.byte(id, 1, 7)
    return string.format('01%02x%02x%02x-%02x%02x-7%02x%x-8%x%02x-', a, b, c, d, e, f, math.floor(g / 16), g % 16,
      string.byte(id, 8)) .. string.format('%02x%02x%02x%02x%02x%02x', string.byte(id, 9, 14))
  elseif #id == 16 then
    if not like_hex then return '' end
    return string.format('%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x', string.byte(id, 1, 16))
  end
  return string.lower(id)
end

local function contains(text)
  return string.find(string.lower(text), needle, 1, true) ~= nil
end

local function may_match(id, record, lease)
  if task ~= '' then
    local ok, is = pcall(has_task, record)
    if ok and not is then return false end
  end
  if needle == '' or contains(record) or (escapes and string.find(record, '\\', 1, true)) then return true end
  return string.find(id_text(id), needle, 1, true) ~= nil or (lease and contains(lease))
end

-- ── the step ──

local parts, answer, seen, found, bytes = sources(), {0, '', '', '', 0}, 0, 0, 0

-- The source whose next entry is first in the order.
local function first_part()
  local best = 1
  for i = 2, #parts do
    local a, b = parts[i], parts[best]
    local earlier = a.at < b.at or (a.at == b.at and a.generation < b.generation)
    if earlier ~= down then best = i end
  end
  return best
end

-- Pass one entry; returns false for one beyond the stop.
local function pass(part)
  local at, id, record, lease = part.at, part.id, part.record, part.lease
  if stop and ((down and at < stop) or (not down and at >= stop)) then return false end
  record = record or redis.call('HGET', jobs, id)
  seen, answer[2], answer[3], answer[4] = seen + 1, at, part.generation, id
  if not record then return true end
  bytes = bytes + #record
  -- the index of due jobs has three states, and partitions and batches that are due
  local other = order_by == 'due' and not wanted[state_of(string.byte(record) or 0)]
  if not other and may_match(id, record, lease) then
    found = found + 1
    local n, number = #answer, whole(at)    -- no table per job: it took half of the time of a search
    answer[n + 1], answer[n + 2] = number, part.generation == at and number or whole(part.generation)
    answer[n + 3], answer[n + 4], answer[n + 5] = id, record, lease or false
  end
  return true
end

while #parts > 0 do
  local i = first_part()
  if not pass(parts[i]) then break end
  if not advanced(parts[i]) then table.remove(parts, i) end
  if found >= most_found or seen >= most_seen or bytes >= most_bytes then
    answer[1] = 1
    break
  end
end
if seen > 0 then answer[2], answer[3] = whole(answer[2]), whole(answer[3]) end
answer[5] = seen
return answer
