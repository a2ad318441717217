-- The steps that a job remembers: a hash, with a field "=" and its name for each step. The field MEMORY has the bytes
-- and the number of all steps; WOKEN exists if a signal has come since the job was last suspended; for OPEN_FLOWS see record.lua.
-- A step: its number, when it was stored, the sizes of three texts, the texts (name and key of its signal, number of the
-- delivery that brought the signal), and "?" while the job waits for the signal, or "=" and the value.
-- needs: clock states record

local MEMORY, WOKEN = '', 'w'
local STEP, STEP_HEAD = '<ddI2I2I2', 22

local function read_step(text)
  local number, at, n, k, d = struct.unpack(STEP, text)
  local from = STEP_HEAD
  local function part(size)
    from = from + size
    return string.sub(text, from - size + 1, from)
  end
  local step = {number = number, at = at, signal = part(n), key = part(k), delivery = part(d)}
  step.value = string.sub(text, from + 1)
  return step
end

local function write_step(steps, name, step)
  redis.call('HSET', steps, '=' .. name,
    struct.pack(STEP, step.number, step.at, #step.signal, #step.key, #step.delivery)
      .. step.signal .. step.key .. step.delivery .. step.value)
end

local function memory_of(steps)
  local text = redis.call('HGET', steps, MEMORY)
  if not text then return 0, 0 end
  return struct.unpack('<dd', text)
end

local function set_memory(steps, bytes, count)
  redis.call('HSET', steps, MEMORY, struct.pack('<dd', bytes, count))
end
