-- Count the unfinished jobs of each queue, and add them to its depths, unless the current minute has a sample.
-- KEYS: the queues.  ARGV: clock, then per resolution, the shortest first: its name, the length of a period (ms), the number
-- of periods kept.  Returns 0.
-- A depth is {period, samples, sum of available, of running, and of other unfinished jobs, most available, total of enqueued
-- jobs at the first sample of the period: 0 at the first sample of the queue, nil in older records}. Depths of a
-- resolution are in a hash, by the period modulo the number kept: a new one replaces the oldest.
-- include: clock states queue
local SPARE = 60000    -- the clock of expiry may differ from that of the script

local resolutions = {}
for i = 2, #ARGV, 3 do
  local length, kept = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local period = math.floor(now / length)
  resolutions[#resolutions + 1] = {
    key = ':depth/' .. ARGV[i], period = period, field = string.format('%.0f', period % kept),
    lives = string.format('%.0f', (period + kept) * length - now + SPARE),
  }
end

-- The depth of the current period; nil if it has none, or one that Penstock did not write.
local function depth_in(queue, one)
  local fine, depth = pcall(cmsgpack.unpack, redis.call('HGET', queue .. one.key, one.field) or '')
  if not fine or type(depth) ~= 'table' or depth[1] ~= one.period then return nil end
  for i = 2, 6 do
    if type(depth[i]) ~= 'number' then return nil end
  end
  return depth
end

local function later_in(queue)
  local n = 0
  for _, state in ipairs({SCHEDULED, RETRYABLE, PARKED, WAITING, COLLECTING, SUSPENDED}) do
    n = n + jobs_in(queue, state)
  end
  return n
end

for _, queue in ipairs(KEYS) do
  if not depth_in(queue, resolutions[1]) and redis.call('EXISTS', queue .. ':meta') == 1 then
    local available, running, later = jobs_in(queue, AVAILABLE), jobs_in(queue, RUNNING), later_in(queue)
    local total = redis.call('EXISTS', queue .. resolutions[#resolutions].key) == 1 and meta(queue).enqueued or 0
    for _, one in ipairs(resolutions) do
      local depth = depth_in(queue, one) or {one.period, 0, 0, 0, 0, 0}
      redis.call('HSET', queue .. one.key, one.field, cmsgpack.pack({
        one.period, depth[2] + 1, depth[3] + available, depth[4] + running, depth[5] + later,
        math.max(depth[6], available), type(depth[7]) == 'number' and depth[7] or total,
      }))
      redis.call('PEXPIRE', queue .. one.key, one.lives)
    end
  end
end
return 0
