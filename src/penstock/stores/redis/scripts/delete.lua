-- Remove jobs.
-- KEYS: the queue.  ARGV: clock, whether to remove running jobs, too (1, 0), whether unique keys stay held for their
-- period (1, 0), ids.  Returns one code per job: its state before, "-" if the job does not exist. Fewer codes than ids:
-- call again for the rest.
-- include: clock states queue leases
local queue, with_running, keeps_keys, codes = KEYS[1], ARGV[2] == '1', ARGV[3] == '1', {}

local slow
local function slow_path()
  if slow then return slow end
  -- include: sound record partitions places one_job
  slow = {remove_now = remove_now, count_ended = count_ended, made_room = function() return room_was_made end}
  return slow
end

-- The usual case: running jobs for whose end nobody waits, and which no other job depends on. Their records need not be
-- read. By position: token and order of the lease.
local function find_quick()
  local quick, seen, held = {}, {}, redis.call('HMGET', queue .. ':held', unpack(ARGV, 4))
  for i = 4, #ARGV do
    local id, lease = ARGV[i], held[i - 3]
    if lease and seen[id] then
      quick[seen[id]] = nil    -- the job is named twice
    elseif lease then
      local token, flags = token_and_flags(lease)
      if flags < SHARES_KEY then quick[i] = {token, string.sub(lease, 1, 7) .. id} end
      seen[id] = i
    end
  end
  return quick
end

local quick = {}
if with_running and #ARGV > 3 and redis.call('EXISTS', queue .. ':watchers') == 0 then quick = find_quick() end

local tokens, ids, orders, places = {}, {}, {}, {}
for i = 4, #ARGV do
  if members_processed >= 2000 then break end    -- the caller asks again for the rest
  if quick[i] then
    local n, token, order = #ids + 1, unpack(quick[i])
    tokens[token] = (tokens[token] or 0) + 1
    ids[n], orders[n], places[n] = ARGV[i], order, i - 3
    codes[i - 3] = NOT_THERE
  else
    codes[i - 3] = status_code(slow_path().remove_now(queue, ARGV[i], with_running, keeps_keys))
  end
end

if #ids > 0 then
  -- as sound.lua: an error comes before the first write
  for _, name in ipairs({':meta', ':jobs', ':tokens', ':days'}) do redis.call('HLEN', queue .. name) end
  redis.call('ZCARD', queue .. ':leases')
  end_leases(queue, tokens, ids, orders)
  local removed = 0
  for n, id in ipairs(ids) do
    if redis.call('HDEL', queue .. ':jobs', id) == 1 then    -- else another program has deleted the record
      codes[places[n]], removed = status_code(RUNNING), removed + 1
    end
  end
  count_processed(queue, removed)
end
if slow then slow.count_ended(queue) end
finish()
if slow and slow.made_room() and not made_ready[queue] then wake_for_room(queue) end
return table.concat(codes)
