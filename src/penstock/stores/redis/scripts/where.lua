-- Find the state and generation of jobs whose records cannot be read, from the indexes that contain their ids.
-- KEYS: the queue.  ARGV: clock, ids.  Returns 2 entries per job: number of the state (7: running), generation.
-- include: clock states queue record partitions places listing
local queue, answer = KEYS[1], {}

local function in_lists(id)
  for _, name in ipairs(redis.call('ZRANGE', queue .. ':ready', 0, -1)) do
    local found = {}
    if not is_moved(name) and redis.call('LPOS', queue .. ':ready/' .. name, id) then
      add_segment(queue, found, name)
    end
    for _, one in ipairs(found) do
      if one[2] == id then return one[1] end
    end
  end
end

local function find_state(id)
  local held = redis.call('HGET', queue .. ':held', id)
  if held then return RUNNING, generation_of_held(queue, id, held) end
  for state = SCHEDULED, SUSPENDED do
    local generation = redis.call('ZSCORE', queue .. ':state/' .. state, id)
    if generation then return state, tonumber(generation) end
  end
  local generation = redis.call('ZSCORE', queue .. IN_BATCH, id)
  if generation then return COLLECTING, tonumber(generation) end
  return AVAILABLE, in_lists(id)
end

for i = 2, #ARGV do
  local state, generation = find_state(ARGV[i])
  local ok, job = pcall(read, redis.call('HGET', queue .. ':jobs', ARGV[i]))
  if ok and state ~= RUNNING then generation = job.generation end
  answer[#answer + 1] = state
  answer[#answer + 1] = string.format('%.0f', generation or 0)
end
return answer
