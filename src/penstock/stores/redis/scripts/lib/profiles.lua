-- The profile of a new job: stored once per queue, or inline in the job's tail.

-- Returns a function that gives the inline profile for a digest, or false if the queue stores it. profiles: n pairs
-- (digest, profile) from ARGV[at] on. A queue stores up to 1000 profiles; other jobs carry their profile inline.
local function profile_keeper(at, n)
  local known = {}
  return function(queue, digest)
    local key = queue .. digest
    if known[key] == nil then
      local wanted
      for i = at, at + 2 * n - 1, 2 do
        if ARGV[i] == digest then wanted = ARGV[i + 1] end
      end
      local have = redis.call('HGET', queue .. ':profiles', digest)
      if not have and redis.call('HLEN', queue .. ':profiles') < 1000 then
        redis.call('HSET', queue .. ':profiles', digest, wanted)
        have = wanted
      end
      known[key] = have ~= wanted and struct.pack('<I2c0', #wanted, wanted)
    end
    return known[key]
  end
end

-- The flags and the tail as stored: a tail as sent (its flags first), with the profile if it is inline.
local function tail_of(sent, inline)
  local flags = string.byte(sent)
  if inline then return flags + 32, inline .. string.sub(sent, 6) end
  return flags, string.sub(sent, 2)
end
