-- Send signals: find a job that waits for each, or store it.
-- KEYS: the signals of the namespace.  ARGV: clock, then per signal: number of the delivery that failed ('': it is new),
-- name, key, id of the job that it is for ('': any), keep (ms), the most stored signals, data. Of a failed delivery only
-- the number is given.
-- Returns 3 entries per signal: RECEIVED (with the number of the delivery, and the delivery), STORED, EXISTS or FULL.
-- include: clock states status_codes signals
local RECEIVED, STORED = 'r', 's'
local answer = {}

local function receiver(name, key, flow)
  local prefix = redis.sha1hex(box_of(name, key, flow))
  local member = redis.call('ZRANGEBYLEX', base .. ':waits', '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
  if not member then return nil end
  local body = string.sub(member, WAIT_PREFIX + 1)
  drop_wait(members_of(name, key, texts_of(body, 4, 1)[2], body))
  return body
end

local function below_most(most)
  if redis.call('HLEN', base) < most then return true end
  for _, box in ipairs(redis.call('ZRANGEBYSCORE', base .. ':over', '-inf', now, 'LIMIT', 0, 1000)) do
    forget_signal(box)
  end
  return redis.call('HLEN', base) < most
end

local function send(name, key, flow, sent_at, keep_until, most, data)
  local body = receiver(name, key, flow)
  if body then
    local number, text = put_out(body, pack_signal(name, key, flow, sent_at, keep_until, most, data))
    return RECEIVED, number, text
  end
  local box = box_of(name, key, flow)
  local stored = redis.call('HGET', base, box)
  if stored then
    local _, till = struct.unpack('<dd', stored)
    if till > now then return EXISTS, '', '' end
  end
  if not stored and not below_most(most) then return FULL, '', '' end
  redis.call('HSET', base, box, struct.pack('<dd', sent_at, keep_until) .. data)
  redis.call('ZADD', base .. ':over', keep_until, box)
  return STORED, '', ''
end

local function send_again(number)
  local text = redis.call('HGET', base .. ':out', number)
  if not text then return STORED, '', '' end
  redis.call('HDEL', base .. ':out', number)
  local size, _, from = struct.unpack('<I4d', text)
  return send(unpack_signal(string.sub(text, from + size)))
end

for i = 2, #ARGV, 7 do
  local n, number = #answer, ARGV[i]
  if number ~= '' then
    answer[n + 1], answer[n + 2], answer[n + 3] = send_again(number)
  else
    local name, key, flow, keep, most, data = unpack(ARGV, i + 1, i + 6)
    answer[n + 1], answer[n + 2], answer[n + 3] = send(name, key, flow, now, now + keep, tonumber(most), data)
  end
end
return answer
