-- Add a report to the statistics of a queue.
-- KEYS: the queue.  ARGV: clock, source, number, how long reports are remembered (ms), most tasks, most groups of errors,
-- how long those are kept (ms), number of resolutions, per resolution: its name, the length of a period (ms), the number of
-- periods kept; number of tasks, per task: its name, what to add (MessagePack: numbers, then sketches); then per group of
-- errors: its name, task, kind, message, count, example of a job.
-- Returns 0.
-- include: clock
local queue, source, number, remembered = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local most_tasks, most_groups, errors_kept = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local SPARE = 60000    -- the clock of expiry may differ from that of the script
local OTHER = 'other'
local place = 8

local function argument()
  place = place + 1
  return ARGV[place - 1]
end

if redis.call('EXISTS', queue .. ':meta') == 0 then return 0 end
local reported = queue .. ':stats/by/' .. source
if (tonumber(redis.call('GET', reported) or 0) or 0) >= number then return 0 end
redis.call('SET', reported, ARGV[3], 'PX', remembered)

-- The sum of two sketches: bucket, number, bucket, number …, by rising bucket.
local function joined(one, more)
  local sum, i, j = {}, 1, 1
  while one[i] or more[j] do
    local bucket = math.min(one[i] or math.huge, more[j] or math.huge)
    local n = 0
    if one[i] == bucket then n, i = n + one[i + 1], i + 2 end
    if more[j] == bucket then n, j = n + more[j + 1], j + 2 end
    sum[#sum + 1] = bucket
    sum[#sum + 1] = n
  end
  return sum
end

local function unpacked(text)
  local fine, found = pcall(cmsgpack.unpack, text)
  return fine and type(found) == 'table' and found or {}    -- a damaged record begins anew
end

local function sum_of(stored, given)
  if not stored then return given end
  local one, more = unpacked(stored), unpacked(given)
  for i, value in ipairs(more) do
    if type(value) == 'number' then
      more[i] = value + (tonumber(one[i]) or 0)
    elseif type(one[i]) == 'table' then
      more[i] = joined(one[i], value)
    end
  end
  return cmsgpack.pack(more)
end

local resolutions = {}
for i = 1, tonumber(argument()) do
  local name, length, kept = argument(), tonumber(argument()), tonumber(argument())
  local period = math.floor(now / length)
  resolutions[i] = {queue .. ':stats/' .. name .. '/' .. period, (period + kept) * length - now + SPARE}
end

for _ = 1, tonumber(argument()) do
  local task, given = argument(), argument()
  for _, one in ipairs(resolutions) do
    local key, lives = one[1], one[2]
    local field, stored = task, redis.call('HGET', key, task)
    local tasks = stored and most_tasks or redis.call('HLEN', key)
    if not stored and tasks >= most_tasks then
      field, stored = OTHER, redis.call('HGET', key, OTHER)
    end
    redis.call('HSET', key, field, sum_of(stored, given))
    if tasks == 0 then redis.call('PEXPIRE', key, string.format('%.0f', lives)) end
  end
end

if place > #ARGV then return 0 end
local groups, by_last = queue .. ':errors', queue .. ':errors/last'

local function add_errors(name, task, kind, message, count, first, last, job)
  local found = redis.call('HGET', groups, name)
  found = found and unpacked(found) or {}
  if #found == 7 then
    message, count = found[3], count + found[4]
    first, last = math.min(first, found[5]), math.max(last, found[6])
  end
  redis.call('HSET', groups, name, cmsgpack.pack({task, kind, message, count, first, last, job}))
end

local function remove(name)
  redis.call('ZREM', by_last, name)
  redis.call('HDEL', groups, name)
end

while place <= #ARGV do
  local name = argument()
  add_errors(name, argument(), argument(), argument(), tonumber(argument()), now, now, argument())
  redis.call('ZADD', by_last, string.format('%.0f', now), name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', by_last, '-inf', string.format('%.0f', now - errors_kept))) do remove(name) end
local beyond = redis.call('ZCARD', by_last) - most_groups
for _, name in ipairs(beyond > 0 and redis.call('ZRANGE', by_last, 0, beyond - 1) or {}) do
  local gone = unpacked(redis.call('HGET', groups, name) or '')
  if #gone == 7 then add_errors('', OTHER, '', '', gone[4], gone[5], gone[6], gone[7]) end
  remove(name)
end
for _, key in ipairs({groups, by_last}) do redis.call('PEXPIRE', key, string.format('%.0f', errors_kept + SPARE)) end
return 0
