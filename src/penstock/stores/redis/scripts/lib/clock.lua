-- The clock. ARGV[1] is '' for the server's clock, or "now steady boot" from a test that controls the clock.
-- A "c" before it: the server is part of a Cluster.

local EPOCH = 1577836800000  -- 2020-01-01: generations count from here (see layout.py)
local PER_MS = 4096          -- generations that fit into one millisecond

local CLUSTERED = 'c'
local clustered = string.sub(ARGV[1], 1, 1) == CLUSTERED
local KEYS = clustered and {KEYS[1]} or KEYS    -- on a Cluster the other keys only select the server: see context.py
local now, steady, boot

if #ARGV[1] < 2 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  steady = now
else
  now, steady, boot = string.match(ARGV[1], '^c?(%-?%d+) (%-?%d+) (.*)$')
  now, steady = tonumber(now), tonumber(steady)
end

local function ms_of(generation)
  return math.floor(generation / PER_MS) + EPOCH
end
