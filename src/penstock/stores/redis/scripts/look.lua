-- Whether there is work, and if not: who wants to hear of it.
-- KEYS: the queues, and last, unless on a Cluster, the news.  ARGV: clock, timeout (ms), till (an instant;
-- '': the timeout from now), channel, offer ('', or lines: lease (ms), token, worker, the queues).
-- Returns {1 for work or 0, till, news: requests to stop, changed settings}.
-- include: room clock queue
local queues = {unpack(KEYS)}
local news = clustered and {} or redis.call('HMGET', table.remove(queues), 'cancels', 'changes')
local till = ARGV[3] == '' and now + tonumber(ARGV[2]) or tonumber(ARGV[3])
local said = string.format('%.0f', till)
for _, queue in ipairs(queues) do
  local due = first_due(queue)
  if due and (due <= now or due < till) then return {1, said, news} end
  if redis.call('EXISTS', queue .. ':ready') == 1 and not meta(queue).paused then
    if not meta(queue).limited then return {1, said, news} end
    local room, opens = limiting().room_of(queue, meta(queue))
    if room > 0 or (opens and opens < till) then return {1, said, news} end
  end
end
local long_gone = string.format('(%.0f', now - 60000)
for _, queue in ipairs(queues) do
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':waiters', '-inf', long_gone, 'LIMIT', 0, 100)) do
    redis.call('ZREM', queue .. ':waiters', gone)    -- no work ever came for him
    redis.call('HDEL', queue .. ':offers', gone)
  end
  redis.call('ZADD', queue .. ':waiters', 'GT', till, ARGV[4])
  redis.call('PEXPIRE', queue .. ':waiters', 60000 + ARGV[2])
  if ARGV[5] ~= '' then
    redis.call('HSET', queue .. ':offers', ARGV[4], ARGV[5])
    redis.call('PEXPIRE', queue .. ':offers', 60000 + ARGV[2])
  end
end
return {0, said, news}
