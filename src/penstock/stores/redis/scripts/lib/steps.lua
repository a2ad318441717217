-- The steps that a job remembers: a hash, with a field "=" and its name for each step. The field MEMORY has the bytes
-- and the number of all steps, and, once a step was forgotten, the highest number that one had; WOKEN exists if a signal has come since the job was last suspended; for OPEN_FLOWS see record.lua.
-- A step: its number, when it was stored, the sizes of three texts, the texts (name and key of its signal, number of the
-- delivery that brought the signal), and "?" while the job waits for the signal, or "=" and the value.
-- needs: clock states record

local MEMORY, WOKEN = '', 'w'
local STEP_FORMAT, STEP_HEAD = '<ddI2I2I2', 22

local function read_step(text)
  local number, at, n, k, d = struct.unpack(STEP_FORMAT, text)
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
    struct.pack(STEP_FORMAT, step.number, step.at, #step.signal, #step.key, #step.delivery)
      .. step.signal .. step.key .. step.delivery .. step.value)
end

-- The bytes and the number of all steps, and the highest number that one has had.
local function memory_of(steps)
  local text = redis.call('HGET', steps, MEMORY)
  if not text then return 0, 0, 0 end
  local bytes, count = struct.unpack('<dd', text)
  return bytes, count, #text > 16 and struct.unpack('<d', text, 17) or count
end

local function set_memory(steps, bytes, count, last)
  redis.call('HSET', steps, MEMORY, struct.pack('<dd', bytes, count) .. (last > count and struct.pack('<d', last) or ''))
end
