-- Send signals: find a job that waits for each, or store it.
-- KEYS: the signals of the namespace.  ARGV: clock, then per signal: number of the delivery that failed ('': it is new),
-- name, key, id of the job that it is for ('': any), keep (ms), the most stored signals, data, "1" if it takes the place of a
-- stored one. Of a failed delivery only the number is given.
-- Returns 3 entries per signal: RECEIVED (with the number of the delivery, and the delivery), STORED, REPLACES, EXISTS or FULL.
-- include: clock states signals
local RECEIVED, STORED, REPLACES = 'r', 's', 'p'
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

local function send(name, key, flow, sent_at, keep_until, most, data, replaces)
  local body = receiver(name, key, flow)
  if body then
    local kept = most + (replaces == '1' and 0.5 or 0)    -- the flag of a delivery that fails
    local number, text = put_out(body, pack_signal(name, key, flow, sent_at, keep_until, kept, data))
    return RECEIVED, number, text
  end
  local box = box_of(name, key, flow)
  local stored = redis.call('HGET', base, box)
  if stored then
    local _, till = struct.unpack('<dd', stored)
    if till > now and replaces ~= '1' then return EXISTS, '', '' end
    replaces = till > now and replaces
  end
  if not stored and not below_most(most) then return FULL, '', '' end
  redis.call('HSET', base, box, struct.pack('<dd', sent_at, keep_until) .. data)
  redis.call('ZADD', base .. ':over', keep_until, box)
  return stored and replaces == '1' and REPLACES or STORED, '', ''
end

local function send_again(number)
  local text = redis.call('HGET', base .. ':out', number)
  if not text then return STORED, '', '' end
  redis.call('HDEL', base .. ':out', number)
  local size, _, from = struct.unpack('<I4d', text)
  local name, key, flow, sent_at, keep_until, most, data = unpack_signal(string.sub(text, from + size))
  return send(name, key, flow, sent_at, keep_until, math.floor(most), data, most % 1 == 0.5 and '1' or '')
end

for i = 2, #ARGV, 8 do
  local n, number = #answer, ARGV[i]
  if number ~= '' then
    answer[n + 1], answer[n + 2], answer[n + 3] = send_again(number)
  else
    local name, key, flow, keep, most, data, replaces = unpack(ARGV, i + 1, i + 7)
    answer[n + 1], answer[n + 2], answer[n + 3] = send(name, key, flow, now, now + keep, tonumber(most), data, replaces)
  end
end
return answer
