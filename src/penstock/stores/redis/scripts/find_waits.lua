-- List waits for signals, to find those whose job waits no more.
-- KEYS: the signals of the namespace.  ARGV: clock, the most per signal, then per signal: name, key, id of the job that it
-- is for ('': any). Without a signal: any waits.
-- Returns 2 entries per wait: its member, and the end of the wait.
-- include: clock states signals
local most, answer = tonumber(ARGV[2]), {}
if #ARGV == 2 then return redis.call('ZRANDMEMBER', base .. ':waits/over', most, 'WITHSCORES') end

local function list(member)
  local score = redis.call('ZSCORE', base .. ':waits/over', member)
  answer[#answer + 1], answer[#answer + 2] = member, score or ''
end

for i = 3, #ARGV, 3 do
  local name, key, flow = unpack(ARGV, i, i + 2)
  local prefix = redis.sha1hex(box_of(name, key, flow))
  local found = redis.call('ZRANGEBYLEX', base .. ':waits', '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, most)
  for _, member in ipairs(found) do
    local body = string.sub(member, WAIT_PREFIX + 1)
    local any, own = members_of(name, key, texts_of(body, 4, 1)[2], body)
    list(any)
    list(own)
  end
end
return answer
