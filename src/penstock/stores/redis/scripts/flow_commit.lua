-- Store a change of a flow, unless another change was stored since the caller has read it, and enqueue the jobs of nodes
-- that start.
-- KEYS: the queue of the flow, then other queues.  ARGV: clock, floor (as in enqueue), id of the flow, version that the
-- caller has read ('' if there was no flow), the new version (random: no number may come twice if the server loses its
-- last moments), time of creation, when to look at the flow again ('' never, "gone": remove the flow), number of
-- profiles, the profiles (digest, profile), number of fields to set, the fields and values, number of fields to remove,
-- the fields, number of parts of entries of `ends` that this change has counted, the parts (number of the queue, name),
-- then the jobs that follow, as in settle.lua, the id by which its end is awaited, if it is over now, and the id of a
-- job of this queue to wake.
-- flow/ID is a hash: `v` version, `head` flow, `o` 1 if it is over, and per node N: `nN` its state, `jN` its job, `iN`
-- inputs, `rN` result.
-- flows: the ids by time of creation. flows/look: the ids by the instant at which `advance_flows` has something to do.
-- Returns {1 if stored, the highest generation, names of the jobs put into `out`}. A job whose id is taken is not stored;
-- that ends its node, by an entry of `ends`.
-- include: clock states status_codes queue profiles record partitions places
local function commit()    -- Lua allows 200 local names per function, and the parts included above use most of them
  -- include: replacing insert
  local home, id = KEYS[1], ARGV[3]
  local flow, floor, profiles = home .. ':flow/' .. id, tonumber(ARGV[2]), tonumber(ARGV[8])
  local version = redis.call('HGET', flow, 'v') or ''
  if version ~= ARGV[4] then return {0, string.format('%.0f', floor), {}} end
  if ARGV[7] == 'gone' then
    redis.call('UNLINK', flow)
    redis.call('ZREM', home .. ':flows', id)
    redis.call('ZREM', home .. ':flows/look', id)
    return {1, string.format('%.0f', floor), {}}
  end
  local inline_profile = profile_keeper(9, profiles)
  local at = 9 + 2 * profiles

  local function next_list()
    local n, list = tonumber(ARGV[at]), {}
    for i = 1, n do list[i] = ARGV[at + i] end
    at = at + 1 + n
    return list
  end

  local sets = next_list()
  sets[#sets + 1], sets[#sets + 2] = 'v', ARGV[5]
  in_steps('HSET', flow, sets)
  in_steps('HDEL', flow, next_list())
  -- in this step: a server that loses its last moments must not lose the count and keep the removal of its entry
  local counted = next_list()
  for i = 1, #counted, 2 do redis.call('HDEL', KEYS[tonumber(counted[i])] .. ':ends', counted[i + 1]) end
  redis.call('ZADD', home .. ':flows', ARGV[6], id)
  if ARGV[7] == '' then
    redis.call('ZREM', home .. ':flows/look', id)
  else
    redis.call('ZADD', home .. ':flows/look', ARGV[7], id)
  end

  local out, blob, i, n = {}, ARGV[at], 1, 0
  while i <= #blob do
    local q, job, form, tail
    q, job, form, tail, i = struct.unpack('<BI4c0I4c0I4c0', blob, i)
    n = n + 1
    floor = count_up(meta(home), floor)
    if q == 0 then
      local name = string.format('%.0f.%.0f.%d', floor, now, n)
      redis.call('HSET', home .. ':out', name, struct.pack('<d', floor) .. tail)
      out[#out + 1] = name
    else
      local to = KEYS[q]
      if redis.call('HEXISTS', to .. ':jobs', job) == 1 or enqueue_status(to, form, true) ~= NEW then
        note_flow(to, job, first_facts(0, form), RUNNING)
      else
        local flags, stored = tail_of(tail, inline_profile(to, string.sub(tail, 2, 5)))
        floor = count_up(meta(to), floor)
        store_new(to, job, form, floor, flags, stored)
        floor = math.max(floor, minted)
        meta(to).enqueued = meta(to).enqueued + 1
      end
    end
  end
  if ARGV[at + 1] ~= '' then publish_end(home, ARGV[at + 1], '') end
  local ok, job = pcall(read, ARGV[at + 2] ~= '' and redis.call('HGET', home .. ':jobs', ARGV[at + 2]))
  if ok then    -- as for a signal that has come (see deliver_signals.lua)
    if redis.call('HEXISTS', home .. ':held', ARGV[at + 2]) == 1 then
      if job.steps then redis.call('HSET', steps_of(home, job), 'w', '1') end
    elseif job.state == SUSPENDED then
      take(home, ARGV[at + 2], job)
      job.run = now
      put_available(home, ARGV[at + 2], job)
    end
  end
  finish()
  return {1, string.format('%.0f', floor), out}
end

return commit()
