-- Whether there is work, and if not: who wants to hear of it.
-- KEYS: the queues.  ARGV: clock, timeout (ms), till (an instant; '': the timeout from now), channel.
-- Returns {1 for work or 0, till}.
-- include: clock record queue
local till = ARGV[3] == '' and now + tonumber(ARGV[2]) or tonumber(ARGV[3])
local said = string.format('%.0f', till)
for _, queue in ipairs(KEYS) do
  local due = first_due(queue)
  if due and (due <= now or due < till) then return {1, said} end
  if redis.call('EXISTS', queue .. ':ready') == 1 and not meta(queue).paused then return {1, said} end
end
for _, queue in ipairs(KEYS) do
  redis.call('ZADD', queue .. ':waiters', 'GT', till, ARGV[4])
  redis.call('PEXPIRE', queue .. ':waiters', 60000 + ARGV[2])
end
return {0, said}
