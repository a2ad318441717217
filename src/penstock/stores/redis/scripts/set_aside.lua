-- Make jobs dead whose records the caller could not read.
-- KEYS: the queue.  ARGV: clock, then per job: id, the record as the caller has read it, cause.
-- Returns the records that were set aside: 3 entries each, the queue's key, id, cause.
-- include: size_check clock states queue leases record partitions places
for i = 2, #ARGV, 3 do
  local id, seen = ARGV[i], ARGV[i + 1]
  local record = redis.call('HGET', KEYS[1] .. ':jobs', id)
  if record and (record == seen or (#seen > 8 and string.sub(record, 2, 8) == string.sub(seen, 2, 8))) then
    set_aside(KEYS[1], id, record, ARGV[i + 2])
  end
end
local answer = take_set_asides({})
finish()
return answer
