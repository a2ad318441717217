-- Signals of a namespace, below a key of its own slot: the signals that no job waits for (a hash; `over`: by the end of
-- their retention), the jobs that wait (`waits`: in the order of bytes; `waits/over`: by the end of the wait), and the
-- deliveries that are not confirmed (`out`). A delivery stays there until its job has the signal, because the job may be
-- in another slot.
-- needs: clock states

local base = KEYS[1]
redis.call('HLEN', base)    -- as sound.lua: an error comes before the first write
redis.call('HLEN', base .. ':out')
for _, name in ipairs({':over', ':waits', ':waits/over'}) do redis.call('ZCARD', base .. name) end

local WAIT_PREFIX = 40    -- the digest of a signal's name, key and flow begins a wait

local function box_of(name, key, flow)
  return struct.pack('<I2I2', #name, #key) .. name .. key .. flow
end

local function texts_of(text, n, from)
  local found = {}
  for i = 1, n do found[i], from = struct.unpack('<I2c0', text, from) end
  return found, from
end

-- A wait is stored twice: for signals to any job, and for those to this job.
local function members_of(name, key, flow, body)
  return redis.sha1hex(box_of(name, key, '')) .. body, redis.sha1hex(box_of(name, key, flow)) .. body
end

local function drop_wait(...)
  redis.call('ZREM', base .. ':waits', ...)
  redis.call('ZREM', base .. ':waits/over', ...)
end

local function forget_signal(box)
  redis.call('HDEL', base, box)
  redis.call('ZREM', base .. ':over', box)
end

-- Note a delivery: body (queue, id, generation, step), signal (name, key, flow, sent at, kept until, the most, data).
local function put_out(body, signal)
  local number = string.format('%.0f', redis.call('INCR', base .. ':number'))
  local text = struct.pack('<I4d', #body, now) .. body .. signal
  redis.call('HSET', base .. ':out', number, text)
  return number, text
end

local function pack_signal(name, key, flow, sent_at, keep_until, most, data)
  return struct.pack('<I2c0I2c0I2c0ddd', #name, name, #key, key, #flow, flow, sent_at, keep_until, most) .. data
end

local function unpack_signal(text)
  local found, from = texts_of(text, 3, 1)
  local sent_at, keep_until, most, at = struct.unpack('<ddd', text, from)
  return found[1], found[2], found[3], sent_at, keep_until, most, string.sub(text, at)
end
