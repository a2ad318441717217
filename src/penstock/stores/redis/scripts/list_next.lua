-- List the jobs of a queue in one state, in the order in which they leave it.
-- KEYS: the queue.  ARGV: clock, state, limit, cursor (number, member, priority; '' for the first page).
-- The number and the member are those of an index: the place or instant, and the id or the order of a job.
-- Returns {1 if there are more jobs, or 0; number, member and priority of the last entry; id, record, id, record ...}.
-- A page ends early if it is large, or after MOST_SEEN entries.
-- include: clock states queue record partitions places listing
local MOST_BYTES, MOST_SEEN, STEP = 1048576, 2000, 100
local queue, state, limit = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local number, member, priority = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local answer, found, seen, bytes = {0, '', '', ''}, 0, 0, 0

-- Note an entry of an index, with its job if that is to be listed. Returns false if the page was full before it.
local function note(id, record, at, its_member, its_priority)
  if found >= limit or bytes >= MOST_BYTES or seen >= MOST_SEEN then
    answer[1] = 1
    return false
  end
  seen = seen + 1
  answer[2], answer[3], answer[4] = string.format('%.0f', at), its_member, its_priority
  if record then
    found, bytes = found + 1, bytes + #record
    answer[#answer + 1] = id
    answer[#answer + 1] = record
  end
  return true
end

-- The rank of the first entry of an index after a score and a member; members of one score are in order of bytes.
local function rank_after(index, score, before)
  local low = redis.call('ZCOUNT', index, '-inf', string.format('(%.0f', score))
  local high = redis.call('ZCOUNT', index, '-inf', string.format('%.0f', score)) - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', index, middle, middle)[1] <= before then low = middle + 1 else high = middle - 1 end
  end
  return low
end

-- An iterator over the entries of an index from a rank on: score, member.
local function entries(index, rank)
  local some, at = {}, 1
  return function()
    if at > #some then
      some, at = redis.call('ZRANGE', index, rank, rank + STEP - 1, 'WITHSCORES'), 1
      rank = rank + #some / 2
    end
    at = at + 2
    return tonumber(some[at - 1]), some[at - 2]
  end
end

-- The index of the first job of a ready list after a place.
local function index_after(list, place)
  local low, high = 0, redis.call('LLEN', list) - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local record = redis.call('HGET', queue .. ':jobs', redis.call('LINDEX', list, middle))
    if place_of(record) <= place then low = middle + 1 else high = middle - 1 end
  end
  return low
end

-- An iterator over the jobs in the ready lists of a priority, after a place: place, id, record.
local function listed(of, place)
  local rank, last = segment_ranks(queue, of)
  local at_rank, index, ids, at = place and segment_rank(queue, of, place), 0, {}, 1
  if at_rank then
    rank = at_rank
    index = index_after(queue .. ':ready/' .. redis.call('ZRANGE', queue .. ':ready', rank, rank)[1], place)
  end
  return function()
    while at > #ids do
      if rank > last then return nil end
      local list = queue .. ':ready/' .. redis.call('ZRANGE', queue .. ':ready', rank, rank)[1]
      ids, at = redis.call('LRANGE', list, index, index + STEP - 1), 1
      index = index + #ids
      if #ids == 0 then rank, index = rank + 1, 0 end
    end
    at = at + 1
    local record = redis.call('HGET', queue .. ':jobs', ids[at - 1])
    return place_of(record), ids[at - 1], record
  end
end

-- Available jobs of one priority: those of its lists and of `again`, merged by place. Returns false if the page is full.
local function note_priority(of, place, id)
  local again = queue .. ':again/' .. of
  local next_again, next_listed = entries(again, place and rank_after(again, place, id) or 0), listed(of, place)
  local place_a, id_a = next_again()
  local place_l, id_l, record_l = next_listed()
  while place_a or place_l do
    local go_on
    if place_l and not (place_a and place_a < place_l) then
      go_on = note(id_l, record_l, place_l, id_l, of)
      place_l, id_l, record_l = next_listed()
    else
      go_on = note(id_a, redis.call('HGET', queue .. ':jobs', id_a), place_a, id_a, of)
      place_a, id_a = next_again()
    end
    if not go_on then return false end
  end
  return true
end

if state == AVAILABLE then
  for _, of in ipairs(bands(queue)) do
    if not priority or of <= priority then
      local here = of == priority
      if not note_priority(of, here and number, here and member) then return answer end
    end
  end
  return answer
end

-- Jobs of an index in order of a score.
local function note_index(index)
  for score, order_of_it in entries(index, number and rank_after(index, number, member) or 0) do
    local id = string.sub(order_of_it, 8)
    local record = redis.call('HGET', queue .. ':jobs', id)
    -- the index of due jobs has three states, and partitions and batches that are due
    if record and not ended_state(state) and state_of(string.byte(record) or 0) ~= state then
      record, bytes = nil, bytes + #record
    end
    if not note(id, record, score, order_of_it, '') then return end
  end
end

note_index(ended_state(state) and queue .. ':ended/' .. state or queue .. ':due')
return answer
