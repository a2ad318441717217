-- Leases: find and void them.
-- needs: clock queue

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

-- Remove all data of these leases.
local function remove_leases(queue, token, ids, orders)
  in_steps('HDEL', queue .. ':held', ids)
  in_steps('ZREM', queue .. ':leases', orders)
  if count_on(queue .. ':tokens', token, -#ids) <= 0 then
    redis.call('HDEL', queue .. ':tokens', token)
  end
end
