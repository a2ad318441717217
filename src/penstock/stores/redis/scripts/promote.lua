-- Make due jobs available, earliest first over all these queues.
-- KEYS: the queues.  ARGV: clock, limit.  Returns {moved, next due ('' if none), now}.
-- include: room clock states record queue places
local limit, moved = tonumber(ARGV[2]), 0

-- Whose turn it is: per queue the members of its order that are due, no more than the limit over all.
local turns, all, several = {}, {}, 0
for q, queue in ipairs(KEYS) do
  local found = redis.call('ZRANGEBYSCORE', queue .. ':due', '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
  if #found > 0 then several = several + 1 end
  turns[q], all[q] = {}, found
  for i = 1, #found, 2 do turns[q][(i + 1) / 2] = found[i] end
end
if several > 1 then
  local found = all
  all = {}
  for q = 1, #KEYS do
    for i = 1, #found[q], 2 do all[#all + 1] = {tonumber(found[q][i + 1]), found[q][i], q} end
  end
  table.sort(all, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  for q = 1, #KEYS do turns[q] = {} end
  for i = 1, math.min(limit, #all) do
    local of_queue = turns[all[i][3]]
    of_queue[#of_queue + 1] = all[i][2]
  end
end

-- The record with another state and place: both stand where they stood.
local function as_available(record, place)
  local flags = string.byte(record)
  return string.char(flags - flags % 8 + AVAILABLE + MOVED) .. string.sub(record, 2, 29)
    .. struct.pack('<d', place) .. string.sub(record, 38)
end

local function promote(queue, members)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = string.sub(member, 8) end
  local records = get_many(queue .. ':jobs', ids)
  local m = meta(queue)
  local gone, left, written, by_place, by_age, n = {}, {}, {}, {}, {}, 0
  for i, id in ipairs(ids) do
    local record = records[i]
    local state, expires = string.byte(record) % 8, struct.unpack('<d', record, 38)
    if expires ~= NONE and expires <= now then
      local job = read(record)
      take(queue, id, job)
      end_queued(queue, id, job, EXPIRED)
    else
      local place = count_up(m)
      local _, generation, priority = struct.unpack('>BI7B', record)
      priority = priority - 128
      local places = by_place[priority] or {}
      by_place[priority] = places
      places.first = places.first or place
      places[#places + 1] = id
      n = n + 1
      gone[n] = members[i]
      left[state] = left[state] or {}
      left[state][#left[state] + 1] = id
      by_age[2 * n - 1], by_age[2 * n] = generation, id
      written[2 * n - 1], written[2 * n] = id, as_available(record, place)
    end
  end
  in_steps('ZREM', queue .. ':due', gone)
  for state, of_state in pairs(left) do in_steps('ZREM', queue .. ':state/' .. state, of_state) end
  in_steps('ZADD', queue .. ':state/' .. AVAILABLE, by_age)
  in_steps('HSET', queue .. ':jobs', written)
  for priority, places in pairs(by_place) do
    push_ready(queue, priority, places.first, places, true)
  end
  if #gone > 0 then made_ready[queue] = true end
  return #gone
end

for q, queue in ipairs(KEYS) do
  if #turns[q] > 0 then moved = moved + promote(queue, turns[q]) end
end
finish()
local due = ''
for _, queue in ipairs(KEYS) do
  local first = first_due(queue)
  if first and (due == '' or first < due) then due = first end
end
return {moved, due == '' and '' or string.format('%.0f', due), string.format('%.0f', now)}
