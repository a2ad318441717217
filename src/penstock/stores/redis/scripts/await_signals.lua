-- Take stored signals for jobs that wait, or note that the jobs wait.
-- KEYS: the signals of the namespace.  ARGV: clock, then per wait: name, key, id of the job, the earliest instant of a
-- signal for it, how long the wait stays (ms), and the wait (queue, id, generation, step).
-- Returns 2 entries per wait: number of the delivery ('' : the job waits), the delivery.
-- include: clock states signals
local answer = {}

local function stored(name, key, flow, since)
  local box = box_of(name, key, flow)
  local text = redis.call('HGET', base, box)
  if not text then return nil end
  local sent_at, keep_until, from = struct.unpack('<dd', text)
  if keep_until <= now or sent_at < since then return nil end    -- an older one may be for a job that waits later
  forget_signal(box)
  return pack_signal(name, key, flow, sent_at, keep_until, 2 ^ 31, string.sub(text, from))
end

for i = 2, #ARGV, 6 do
  local name, key, flow, since, keep, body = unpack(ARGV, i, i + 5)
  local n, any, own = #answer, members_of(name, key, flow, body)
  local signal = stored(name, key, flow, tonumber(since)) or stored(name, key, '', tonumber(since))
  if signal then
    drop_wait(any, own)
    answer[n + 1], answer[n + 2] = put_out(body, signal)
  else
    redis.call('ZADD', base .. ':waits', 0, any, 0, own)
    redis.call('ZADD', base .. ':waits/over', now + keep, any, now + keep, own)
    answer[n + 1], answer[n + 2] = '', ''
  end
end
return answer
