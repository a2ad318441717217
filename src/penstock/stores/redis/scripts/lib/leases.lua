-- Leases: find, void and end them, without the records of their jobs.
-- needs: clock states queue

-- Void all leases after a reboot. Only a test's clock can reboot; the server's wall clock continues through one.
local function notice_reboot(queue)
  if not boot then return end
  local before = redis.call('GET', queue .. ':boot')
  if before == boot then return end
  redis.call('SET', queue .. ':boot', boot)
  if not before then return end
  for _, member in ipairs(redis.call('ZRANGE', queue .. ':leases', 0, -1)) do
    redis.call('ZADD', queue .. ':leases', -1, member)
  end
end

local function token_of(held)
  return string.sub(held, 9, 8 + (string.byte(held, 8) or 0))
end

-- Append the jobs leased under this token to `found`, 4 entries each: number of the queue, id, record, lease.
local function under_token(queues, token, found)
  for q, queue in ipairs(queues) do
    if redis.call('HEXISTS', queue .. ':tokens', token) == 1 then
      local held = redis.call('HGETALL', queue .. ':held')
      for i = 1, #held, 2 do
        local record = token_of(held[i + 1]) == token and redis.call('HGET', queue .. ':jobs', held[i])
        if record then
          found[#found + 1] = q
          found[#found + 1] = held[i]
          found[#found + 1] = record
          found[#found + 1] = held[i + 1]
        end
      end
    end
  end
  return found
end

-- Remove leases, before other writes: an error fails the call.
local function remove_leases(queue, token, ids, orders)
  in_steps('HDEL', queue .. ':held', ids)
  in_steps('ZREM', queue .. ':leases', orders)
  if count_on(queue .. ':tokens', token, -#ids) <= 0 then
    redis.call('HDEL', queue .. ':tokens', token)
  end
end

-- The token and the flags of a lease; defaults if its bytes are too short.
local function token_and_flags(lease)
  local at = flags_at(lease)
  return string.sub(lease, 9, at - 9), string.byte(lease, at) or SHARES_KEY
end

-- Remove leases, after the first write: a broken key fails no call. `tokens`: how many leases of each token end.
local function end_leases(queue, tokens, ids, orders)
  in_steps('HDEL', queue .. ':held', ids)    -- the lease has ended: what follows fails no call
  pcall(in_steps, 'ZREM', queue .. ':leases', orders)
  for token, n in pairs(tokens) do
    if count_on(queue .. ':tokens', token, -n) <= 0 then
      redis.pcall('HDEL', queue .. ':tokens', token)
    end
  end
end

-- Count attempts that have ended.
local function count_processed(queue, n)
  count_on(queue .. ':meta', 'processed', n)
  count_on(queue .. ':days', math.floor(now / 86400000) .. '/processed', n)
end
