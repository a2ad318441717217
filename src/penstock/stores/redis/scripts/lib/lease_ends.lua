-- End leases without reading the records of their jobs.
-- needs: clock states queue

-- The token and the flags of a lease; defaults if its bytes are too short.
local function facts_of(lease)
  local token_size = string.byte(lease, 8) or 0
  return string.sub(lease, 9, 8 + token_size), string.byte(lease, 17 + token_size) or SHARES_KEY
end

-- Remove all data of leases; `tokens`: how many of them each token has.
local function end_leases(queue, tokens, ids, orders)
  in_steps('HDEL', queue .. ':held', ids)
  in_steps('ZREM', queue .. ':leases', orders)
  for token, n in pairs(tokens) do
    if count_on(queue .. ':tokens', token, -n) <= 0 then
      redis.call('HDEL', queue .. ':tokens', token)
    end
  end
end

-- Count attempts that have ended.
local function count_processed(queue, n)
  count_on(queue .. ':meta', 'processed', n)
  count_on(queue .. ':days', math.floor(now / 86400000) .. '/processed', n)
end
