-- Store new jobs.
-- KEYS: the queues.  ARGV: clock, floor (the highest generation that the caller has seen), places ('', or 2
-- bytes per job: where it stands in a call over several servers), how many profiles, those (digest, profile),
-- then per job: id, form, tail.
-- form: number of the queue, priority + 100, and unless the job is plain: delay, run_at, expires_in,
-- expires_at, the key's period (doubles), the unique key; tail: its flags, and as it stands in the record.
-- Returns {the highest generation, numbers of the queues that were new, a letter per job (n new, x exists,
-- c closed, d duplicate), then for each duplicate the holder's id}.
-- include: clock states queue new
local floor, places, profiles = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local first = 5 + 2 * profiles
local inline_profile = profile_keeper(5, profiles)

local asked, taken, count, fresh, records = {}, {}, {}, {}, {}
for q = 1, #KEYS do
  asked[q], taken[q], count[q], fresh[q], records[q] = {}, {}, 0, {}, {}
end
for i = first, #ARGV, 3 do
  local of_queue = asked[string.byte(ARGV[i + 1])]
  of_queue[#of_queue + 1] = ARGV[i]
end
for q, queue in ipairs(KEYS) do
  if #asked[q] > 0 then
    local found = get_many(queue .. ':jobs', asked[q])
    for i, id in ipairs(asked[q]) do
      if found[i] then taken[q][id] = true end
    end
  end
end

local unusual
local function unusually()
  if unusual then return unusual end
  -- include: record places newcomer
  unusual = {verdict_on = verdict_on, store_new = store_new}
  return unusual
end

-- The usual job, available now and nothing special: into the lists, and written together with its like.
local function keep_fresh(q, id, priority, generation, flags, tail)
  local list, of_queue = fresh[q][priority], records[q]
  if not list then
    list = {first = generation}
    fresh[q][priority] = list
  end
  list[#list + 1] = id
  of_queue[#of_queue + 1] = id
  of_queue[#of_queue + 1] =
    struct.pack('>BI7B', AVAILABLE + FRESH + flags, generation, priority + 128) .. tail
end

local verdicts, holders = {}, {}
for i = first, #ARGV, 3 do
  local id, form, tail = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local q, priority = string.byte(form, 1, 2)
  local queue = KEYS[q]
  local verdict, has
  if taken[q][id] then
    verdict = 'x'
  elseif #form == 2 then
    verdict = meta(queue).closed and 'c' or 'n'
  else
    verdict, has = unusually().verdict_on(queue, form, false)
  end
  if verdict == 'n' then
    local flags, stored = tail_of(tail, inline_profile(queue, string.sub(tail, 2, 5)))
    local generation
    if places == '' then
      generation = count_up(meta(queue), floor)
      floor = generation
    else
      generation = count_up(meta(queue), floor, struct.unpack('<I2', places, 2 * (i - first) / 3 + 1))
    end
    taken[q][id] = true
    count[q] = count[q] + 1
    if #form == 2 and ms_of(generation) == now then
      keep_fresh(q, id, priority - 100, generation, flags, stored)
    else
      unusually().store_new(queue, id, form, generation, flags, stored)
    end
  end
  verdicts[#verdicts + 1] = verdict
  holders[#holders + 1] = has
end

local new = {}
for q, queue in ipairs(KEYS) do
  local m = meta(queue)
  if count[q] > 0 then
    if m.new then new[#new + 1] = q end
    m.enqueued = m.enqueued + count[q]
    in_steps('HSET', queue .. ':jobs', records[q])
    for priority, list in pairs(fresh[q]) do
      push_ready(queue, priority, list.first, list)
      m.fresh = m.fresh + #list
      made_ready[queue] = true
    end
  end
end
finish()
for _, queue in ipairs(KEYS) do floor = math.max(floor, meta(queue).generation) end
return {string.format('%.0f', floor), new, table.concat(verdicts), unpack(holders)}
