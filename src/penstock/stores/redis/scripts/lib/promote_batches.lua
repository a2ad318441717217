-- Promotion where jobs join collecting batches, or batches are due: one by one over all queues, in the order of their
-- due times, because a joining member may postpone or fill its batch.
-- needs: clock states queue record partitions places
-- Also needs promote_single of promote.lua.

local function promote_one(queue, id, member)
  if string.sub(member, 1, 7) == PARTITION_IN_DUE then return advance(queue, id) end    -- a partition
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record then
    forget_traces(queue, id, member)
    return 0
  end
  return promote_single(queue, id, record, member)
end

-- Returns how many were promoted, how much of the limit was used, and whether some had become due later meanwhile.
local function promote_with_batches(limit)
  local all, moved, used, skipped = {}, 0, 0, false
  for _, queue in ipairs(KEYS) do
    local found =
      redis.call('ZRANGEBYSCORE', queue .. ':due', '-inf', now, 'WITHSCORES', 'LIMIT', 0, 2 * limit)
    for i = 1, #found, 2 do all[#all + 1] = {tonumber(found[i + 1]), found[i], queue} end
  end
  table.sort(all, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    if a[2] ~= b[2] then return a[2] < b[2] end
    return a[3] < b[3]
  end)
  for _, one in ipairs(all) do
    if used >= limit or members_processed >= 2000 then break end
    local member, queue = one[2], one[3]
    local id = string.sub(member, 8)
    if string.byte(member) == 255 and string.sub(member, 1, 7) ~= string.rep('\255', 7) then
      redis.call('ZREM', queue .. ':due', member)    -- not written by Penstock
    elseif string.byte(member) ~= 255 then
      moved, used = moved + promote_one(queue, id, member), used + 1
    elseif batches().is_due(queue, id) then
      moved, used = moved + (batches().flush(queue, id) and 1 or 0), used + 1
    else
      skipped = true
    end
  end
  return moved, used, skipped
end
