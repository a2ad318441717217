-- Take away what is over.
-- KEYS: the queue.  ARGV: clock, how many past their retention, how many beyond the newest (completed,
-- cancelled, dead together), keep_finished, keep_dead, how many expired, 1: old days and idle ties too.
-- Returns {ended jobs that went, expired jobs that were cancelled}.
-- include: room clock states record queue lanes places lease days
local queue = KEYS[1]
local finished, expired = 0, 0

local function forget(member)
  local id = string.sub(member, 8)
  local record = redis.call('HGET', queue .. ':jobs', id)
  if record then
    local job = read(record)
    take(queue, id, job)
    remove(queue, id, job, true)
  else
    forget_traces(queue, id, member)
  end
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
  local beyond = limiting().beyond(queue, meta(queue), state, tonumber(ARGV[4]), tonumber(ARGV[5]))
  local many = math.min(left, beyond)
  if many > 0 then
    left = left - many
    for _, member in ipairs(redis.call('ZRANGE', queue .. ':ended/' .. state, 0, many - 1)) do forget(member) end
  end
end
n = tonumber(ARGV[6])
if n > 0 then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':expiring', '-inf', now, 'LIMIT', 0, n)) do
    local id = string.sub(member, 8)
    local record = redis.call('HGET', queue .. ':jobs', id)
    if record then
      local job = read(record)
      take(queue, id, job)
      end_queued(queue, id, job, EXPIRED)
    else
      forget_traces(queue, id, member)
    end
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
