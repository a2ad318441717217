-- Change documents of one kind.
-- KEYS: the documents of the kind, a hash: "" → version of the kind; "=" and a name → revision, updated at, expires at
-- (NONE: never), and the body. Beside it, an index of the names by the instant at which they expire.
-- ARGV: clock, the most documents, then per change: name, expected revision ('': any), body ("=" and the bytes; '' removes
-- the document), expires in (ms, '' for never).
-- Returns two entries per change: status (WRITTEN, CONFLICT or TOO_MANY), revision.
-- include: clock states
local WRITTEN, CONFLICT, TOO_MANY = 0, 1, 2
local SOME, MANY = 100, 1000    -- the expired documents that a call removes, and that it removes to make room
local documents, most, answer = KEYS[1], tonumber(ARGV[2]), {}
local expiring = documents .. ':expiring'
local version = tonumber(redis.call('HGET', documents, '') or 0) or 0
local before = version

local function whole(number) return string.format('%.0f', number) end

-- Whether the kind has fewer documents than it may have.
local function below_most()
  return redis.call('HLEN', documents) - redis.call('HEXISTS', documents, '') < most
end

local function is_over(text)
  if #text < 24 then return true end    -- not written by Penstock
  local _, _, expires = struct.unpack('<ddd', text)
  return expires ~= NONE and expires <= now
end

local function remove_expired(limit)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', whole(now), 'LIMIT', 0, limit)) do
    redis.call('HDEL', documents, name)
    redis.call('ZREM', expiring, name)
  end
end

local function has_room()
  if not below_most() then remove_expired(MANY) end
  return below_most()
end

local function change(name, expected, body, expires_in)
  local stored = redis.call('HGET', documents, name)
  local revision = stored and not is_over(stored) and struct.unpack('<d', stored) or 0
  if expected ~= '' and tonumber(expected) ~= revision then return CONFLICT, revision end
  if body == '' then
    version = version + redis.call('HDEL', documents, name)
    redis.call('ZREM', expiring, name)
    return WRITTEN, 0
  end
  if not stored and not has_room() then return TOO_MANY, 0 end
  version = version + 1
  local expires = expires_in ~= '' and now + tonumber(expires_in) or NONE
  redis.call('HSET', documents, name, struct.pack('<ddd', version, now, expires) .. string.sub(body, 2))
  if expires == NONE then redis.call('ZREM', expiring, name) else redis.call('ZADD', expiring, whole(expires), name) end
  return WRITTEN, version
end

if #ARGV > 2 then remove_expired(SOME) end
for i = 3, #ARGV, 4 do
  local status, revision = change('=' .. ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  answer[#answer + 1] = status
  answer[#answer + 1] = whole(revision)
end
if version ~= before then redis.call('HSET', documents, '', whole(version)) end
return answer
