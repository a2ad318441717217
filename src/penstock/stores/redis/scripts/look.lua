-- Check for work; if there is none, add a channel to the waiters of the queues.
-- KEYS: the queues, and last, except on a Cluster, the wake counts.  ARGV: clock, timeout (ms), till (an instant;
-- '': the timeout from now), channel, offer ('', or lines: lease (ms), token, worker, the queues), 1 if what is due
-- before the end is work (else 0), and the numbers of the queues whose parked jobs are work for the caller.
-- Returns {1 for work, else 0; till; the wake counts: requests to stop, changes of settings}, and without work the
-- first due instant ('' if none), now.
-- include: size_check clock states queue
local WORK, NO_WORK = 1, 0
local queues = {unpack(KEYS)}
local counts = clustered and {} or redis.call('HMGET', table.remove(queues), 'cancels', 'changes')
local till = ARGV[3] == '' and now + tonumber(ARGV[2]) or tonumber(ARGV[3])
local till_text = string.format('%.0f', till)
local due_is_work, next_due = ARGV[6] == '1', nil
local knows = {}
for i = 7, #ARGV do knows[queues[tonumber(ARGV[i])]] = true end
for _, queue in ipairs(queues) do
  local due = first_due(queue)
  if due and due_is_work and (due <= now or due < till) then return {WORK, till_text, counts} end
  if due and (not next_due or due < next_due) then next_due = due end
  if redis.call('EXISTS', queue .. ':ready') == 1 and not meta(queue).paused then
    if not meta(queue).limited then return {WORK, till_text, counts} end
    local room, opens_at = limiting().room_of(queue, meta(queue))
    if room > 0 or (opens_at and opens_at < till) then return {WORK, till_text, counts} end
  end
end
for queue in pairs(knows) do
  if redis.call('EXISTS', queue .. ':parked') == 1 and not meta(queue).paused
    and (not meta(queue).limited or limiting().room_of(queue, meta(queue)) > 0) then
    return {WORK, till_text, counts}
  end
end
local answer = {NO_WORK, till_text, counts, next_due and string.format('%.0f', next_due) or '', string.format('%.0f', now)}
if tonumber(ARGV[2]) <= 0 then return answer end    -- the caller does not sleep
local expired_before = string.format('(%.0f', now - 60000)
local function add_waiter(waiters)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', waiters, '-inf', expired_before, 'LIMIT', 0, 100)) do
    redis.call('ZREM', waiters, gone)    -- a waiter whose time ended a minute ago and that got no work
    redis.call('HDEL', string.match(waiters, '^(.*}):') .. ':offers', gone)
  end
  redis.call('ZADD', waiters, 'GT', till, ARGV[4])
  redis.call('PEXPIRE', waiters, 60000 + ARGV[2])
end
for _, queue in ipairs(queues) do
  add_waiter(queue .. ':waiters')
  if knows[queue] then add_waiter(queue .. ':waiters/parked') end
  if ARGV[5] ~= '' then
    redis.call('HSET', queue .. ':offers', ARGV[4], ARGV[5])
    redis.call('PEXPIRE', queue .. ':offers', 60000 + ARGV[2])
  end
end
return answer
