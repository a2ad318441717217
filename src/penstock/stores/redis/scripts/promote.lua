-- Make due jobs available, earliest first over all these queues.
-- KEYS: the queues.  ARGV: clock, limit.  Returns {moved, next due ('' if none), now}.
-- include: room clock states record queue places lease
local limit, moved = tonumber(ARGV[2]), 0

local function first_of_all()
  local first, who, of
  for _, queue in ipairs(KEYS) do
    local due, member = first_due(queue)
    if due and (not first or due < first or (due == first and member < who)) then
      first, who, of = due, member, queue
    end
  end
  return first, who, of
end

while limit > 0 do
  local due, member, queue = first_of_all()
  if not due or due > now then break end
  limit = limit - 1
  local id = string.sub(member, 8)
  local job = read(redis.call('HGET', queue .. ':jobs', id))
  take(queue, id, job)
  if job.expires and job.expires <= now then
    end_queued(queue, id, job, EXPIRED)
  else
    put_available(queue, id, job)
    moved = moved + 1
  end
end
finish()
local due = first_of_all()
return {moved, due and string.format('%.0f', due) or '', string.format('%.0f', now)}
