-- Direct dispatch: lease a job to a worker that waits with an offer, if no other job is ready. The job is sent with the
-- wake-up message.
-- needs: clock states

local DISPATCH_MESSAGE = 'h'    -- as subscriber.py reads it

-- The waiter to which the next job of the queue can be leased: its channel and its offer.
local function offer_for(queue, record)
  if clustered or #record > 65536 or redis.call('EXISTS', queue .. ':ready', queue .. ':parked') > 0 then return nil end
  local waiter = redis.call('ZRANGE', queue .. ':waiters', 0, 0, 'WITHSCORES')
  if not waiter[1] or tonumber(waiter[2]) <= now then return nil end
  local offer = redis.call('HGET', queue .. ':offers', waiter[1])
  if not offer or redis.call('PUBSUB', 'NUMSUB', waiter[1])[2] == 0 then return nil end
  return waiter[1], offer
end

-- Lease an available job, whose record is stored, to this waiter, and remove it from the waiters of all queues. Returns
-- false, and has done nothing, if a key of the queue holds something else. A key of another queue that does is passed over.
local function dispatch(queue, id, record, channel, offer)
  local lease, token, worker, queues = string.match(offer, '^(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
  local generation = string.sub(record, 2, 8)
  local leased = type(redis.pcall('ZADD', queue .. ':leases', steady + lease, generation .. id)) == 'number'
    and type(redis.pcall('HSET', queue .. ':held', id, generation .. string.char(#token) .. token
      .. struct.pack('<dBI2c0', now, CHARGED, #worker, worker))) == 'number'
    and type(redis.pcall('HINCRBY', queue .. ':tokens', token, 1)) == 'number'
  if not leased then
    redis.pcall('ZREM', queue .. ':leases', generation .. id)
    redis.pcall('HDEL', queue .. ':held', id)
    return false
  end
  for other in string.gmatch(queues, '[^\n]+') do
    redis.pcall('ZREM', other .. ':waiters', channel)
    redis.pcall('HDEL', other .. ':offers', channel)
  end
  local name = string.match(queue, '/([^}]*)}$')
  redis.call('PUBLISH', channel,
    DISPATCH_MESSAGE .. struct.pack('>BBBd', #name, #id, #token, now) .. name .. id .. token .. record)
  return true
end
