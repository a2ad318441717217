-- Take away what is over.
-- KEYS: the queue.  ARGV: clock, how many past their retention, how many beyond the newest (completed,
-- cancelled, dead together), keep_finished, keep_dead, how many expired, 1: old days and idle ties too.
-- Returns {ended jobs that went, expired jobs that were cancelled}.
-- include: room clock states record queue lanes places lease days
local queue = KEYS[1]
local finished, expired = 0, 0

local function forget(member)
  local id = string.sub(member, 8)
  local job = read(redis.call('HGET', queue .. ':jobs', id))
  take(queue, id, job)
  remove(queue, id, job)
  finished = finished + 1
end

local n = tonumber(ARGV[2])
if n > 0 then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':over', '-inf', now, 'LIMIT', 0, n)) do
    forget(member)
  end
end
local left = tonumber(ARGV[3])
for _, state in ipairs({COMPLETED, CANCELLED, DEAD}) do
  local ended = queue .. ':ended/' .. state
  local keep = math.max(0, tonumber(state == DEAD and ARGV[5] or ARGV[4]))
  local many = math.min(left, redis.call('ZCARD', ended) - keep)
  if many > 0 then
    left = left - many
    for _, member in ipairs(redis.call('ZRANGE', ended, 0, many - 1)) do forget(member) end
  end
end
n = tonumber(ARGV[6])
if n > 0 then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':expiring', '-inf', now, 'LIMIT', 0, n)) do
    local id = string.sub(member, 8)
    local job = read(redis.call('HGET', queue .. ':jobs', id))
    take(queue, id, job)
    end_queued(queue, id, job, EXPIRED)
    expired = expired + 1
  end
end
if ARGV[7] == '1' then
  local old = old_days(queue)
  if #old > 0 then redis.call('HDEL', queue .. ':days', unpack(old)) end
  prune_ties(queue)
end
finish()
return {finished, expired}
