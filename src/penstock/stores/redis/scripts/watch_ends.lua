-- Find the jobs that have not ended, and put a channel on their watchers.
-- KEYS: the queues.  ARGV: clock, channel, duration of the wait (ms), then per queue the number of jobs and their ids.
-- Returns per queue the ids that are still open.
-- include: size_check clock states queue record partitions places
local MOST = 8192    -- bytes of channels for one job
local channel, wanted = ARGV[2], tonumber(ARGV[3])

-- An id that begins with "flow/" stands for the end of a flow. Ids of 14 or 16 bytes are packed, and of jobs.
local function is_open(queue, id)
  local flow = #id ~= 14 and #id ~= 16 and string.match(id, '^%z%z?flow/(.+)$')
  if flow then
    local stored = redis.call('HMGET', queue .. ':flow/' .. flow, 'v', 'o')
    return stored[1] and stored[2] ~= '1'
  end
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record then return false end
  return not ended_state(state_of(string.byte(record) or 0)) or redis.call('HEXISTS', queue .. ':held', id) == 1
end

local function still_open(queue, ids)
  local watchers, open = queue .. ':watchers', {}
  local listed = redis.call('HMGET', watchers, unpack(ids))
  for i, id in ipairs(ids) do
    local channels = listed[i] or ''
    -- the end of a job removes it from this hash, so a channel that is listed needs no further check
    if string.find(' ' .. channels .. ' ', ' ' .. channel .. ' ', 1, true) then
      open[#open + 1] = id
    elseif is_open(queue, id) then
      open[#open + 1] = id
      channels = channels == '' and channel or channels .. ' ' .. channel
      -- the oldest channels have mostly stopped waiting; one that has not is listed again within seconds
      while #channels > MOST do channels = string.match(channels, ' (.*)$') end
      redis.call('HSET', watchers, id, channels)
    end
  end
  if #open > 0 and redis.call('PTTL', watchers) < wanted + 30000 then
    redis.call('PEXPIRE', watchers, wanted + 60000)
  end
  return open
end

local found, at = {}, 4
while at <= #ARGV do
  local ids = {}
  for i = at + 1, at + tonumber(ARGV[at]) do ids[#ids + 1] = ARGV[i] end
  found[#found + 1] = still_open(KEYS[#found + 1], ids)
  at = at + 1 + #ids
end
return found
