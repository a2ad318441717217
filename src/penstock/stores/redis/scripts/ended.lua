-- Which of these jobs have not ended, and who wants to hear of their end.
-- KEYS: the queue.  ARGV: clock, channel, timeout (ms), ids.  Returns the ids that are still open.
-- include: room clock states record queue places
local MOST = 8192    -- bytes of channels for one job
local watchers, open = KEYS[1] .. ':watchers', {}
for i = 4, #ARGV do
  local record = redis.call('HGET', KEYS[1] .. ':jobs', ARGV[i])
  if record and (redis.call('HEXISTS', KEYS[1] .. ':held', ARGV[i]) == 1 or not ended_state(string.byte(record) % 8)) then
    open[#open + 1] = ARGV[i]
    local channels = redis.call('HGET', watchers, ARGV[i]) or ''
    if not string.find(' ' .. channels .. ' ', ' ' .. ARGV[2] .. ' ', 1, true) then
      channels = channels == '' and ARGV[2] or channels .. ' ' .. ARGV[2]
      -- of so many the oldest have long stopped waiting; who has not is on the list again in a few seconds
      while #channels > MOST do channels = string.match(channels, ' (.*)$') end
      redis.call('HSET', watchers, ARGV[i], channels)
    end
  end
end
if #open > 0 then
  local left = redis.call('PTTL', watchers)
  local wanted = tonumber(ARGV[3]) + 60000
  if left < wanted then redis.call('PEXPIRE', watchers, wanted) end
end
return open
