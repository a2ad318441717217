-- Change the switches and limits of a queue.
-- KEYS: the queue.  ARGV: clock, paused, closed (each 1, 0 or '' : unchanged), throttle ('' : unchanged; 0: none; ms
-- from now), who sets the limits (operator or code), then the limits in the order of limits.lua (each a number, INHERIT:
-- not set by this one, or '' : unchanged).
-- Returns {1 if anything changed, 1 if the queue was new}.
-- include: size_check clock states queue sound leases record partitions places
local queue, m, changed = KEYS[1], meta(KEYS[1]), 0
for i, name in ipairs({'paused', 'closed'}) do
  local wanted = ARGV[i + 1]
  if wanted ~= '' and (wanted == '1') ~= m[name] then
    changed, m[name] = 1, wanted == '1'
    save()
    redis.call('HSET', queue .. ':meta', name, wanted)
  end
end

-- Mark the existing leases: when a marked lease ends, settle wakes a waiter, because the queue has room for a job.
local function mark_leases()
  local held = redis.call('HGETALL', queue .. ':held')
  for i = 1, #held, 2 do
    local lease = read_held(held[i + 1])
    if lease.flags < LIMITED then
      lease.flags = lease.flags + LIMITED
      redis.call('HSET', queue .. ':held', held[i], write_held(lease))
    end
  end
end

local COUNT, BURST = 4, 6    -- of limits.lua's RULES
local INHERIT = -9007199254740991

-- Change what the operator or the code has set (core/limits.py), and return the values in effect.
local function change_layer(limits, none, before)
  local layers, inherited = {}, {}
  for i = 1, #limits.RULES do inherited[i] = INHERIT end
  local unset = struct.pack(LIMITS, unpack(inherited))
  local known = false
  for _, name in ipairs({'operator', 'code'}) do
    local text = redis.call('HGET', queue .. ':meta', 'limits_by_' .. name)
    if text and #text == #none then known = true else text = unset end
    layers[name] = {struct.unpack(LIMITS, text)}
  end
  if not known and m.limits then    -- stored before there were layers
    local defaults = {struct.unpack(LIMITS, none)}
    for i, value in ipairs({struct.unpack(LIMITS, m.limits)}) do
      if i <= #defaults - 1 and value ~= defaults[i] then layers.operator[i] = value end
    end
  end
  local layer = layers[ARGV[5]]
  for i = 1, #limits.RULES do
    if ARGV[5 + i] ~= '' then layer[i] = tonumber(ARGV[5 + i]) end
  end
  -- a new rate keeps the burst in effect; the default is 1
  local rated = layer[COUNT] ~= NONE and layer[COUNT] ~= INHERIT
  if rated and (layer[BURST] == NONE or layer[BURST] == INHERIT) then layer[BURST] = before.burst or 1 end
  local values, defaults = {}, {struct.unpack(LIMITS, none)}
  for i = 1, #limits.RULES do
    values[i] = defaults[i]
    if layers.code[i] ~= INHERIT then values[i] = layers.code[i] end
    if layers.operator[i] ~= INHERIT then values[i] = layers.operator[i] end
  end
  for name, of in pairs(layers) do
    local packed = struct.pack(LIMITS, unpack(of, 1, #limits.RULES))
    if packed == unset then
      redis.call('HDEL', queue .. ':meta', 'limits_by_' .. name)
    else
      redis.call('HSET', queue .. ':meta', 'limits_by_' .. name, packed)
    end
  end
  return values
end

local function change_limits()
  local limits = limiting()
  local values = {NONE, 0}
  for i = 3, #limits.RULES do values[i] = NONE end
  local none = struct.pack(LIMITS, unpack(values))
  local before = limits.rules_of(m)
  values = change_layer(limits, none, before)
  local packed = struct.pack(LIMITS, unpack(values, 1, #limits.RULES))
  if packed == (m.limits or none) then return end
  changed = 1
  if packed == none then
    m.limits, m.rules = false, nil
    redis.call('HDEL', queue .. ':meta', 'limits', 'next_start', 'drained')
    return
  end
  m.limits, m.rules = packed, nil
  save()
  redis.call('HSET', queue .. ':meta', 'limits', packed)
  local rules = limits.rules_of(m)
  if rules.max_running and not before.max_running then mark_leases() end
  local next_start = tonumber(redis.call('HGET', queue .. ':meta', 'next_start'))
  if rules.step and next_start and (rules.step ~= before.step or rules.burst ~= before.burst) then
    next_start = math.min(next_start, now + rules.burst * rules.step)
    redis.call('HSET', queue .. ':meta', 'next_start', string.format('%.17g', next_start))
  end
end

local sets_limits = false
for i = 6, #ARGV do sets_limits = sets_limits or ARGV[i] ~= '' end
if sets_limits then change_limits() end
if ARGV[4] ~= '' then
  local until_now = m.throttled_until and m.throttled_until > now and m.throttled_until or 0
  local throttled_until = ARGV[4] == '0' and 0 or now + tonumber(ARGV[4])
  if throttled_until ~= until_now then changed = 1 end
  if throttled_until > 0 then
    m.throttled_until = throttled_until
    save()
    redis.call('HSET', queue .. ':meta', 'throttled_until', string.format('%.0f', throttled_until))
  elseif m.throttled_until then    -- also one that has ended: it would count again if the clock were set back
    m.throttled_until = nil
    redis.call('HDEL', queue .. ':meta', 'throttled_until')
  end
end
if m.new then count_up(m) end
save()
return {changed, m.new and 1 or 0}
