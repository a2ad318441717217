-- Describe the partition of a job: the admitted jobs, and the number of waiting jobs.
-- KEYS: the queue.  ARGV: clock, id, the most admitted jobs to return.  Returns nothing, or {key, number of waiting
-- jobs, number of waiting jobs ahead of this one ('' : it is not waiting), when the first waiting job is admitted ('' :
-- not by time alone), then 3 entries per admitted job: id, record, lease or nothing}.
-- include: clock states queue leases record partitions places one_job
local queue, id = KEYS[1], ARGV[2]
local record = redis.call('HGET', queue .. ':jobs', id)
local is_read, job = pcall(read, record)
if not is_read or not job or not job.partition
  or ended_state(job.state) and redis.call('HEXISTS', queue .. ':held', id) == 0 then
  return false
end
local partition, before = partition_of(queue, terms_of(job)), ''
local running = redis.call('HEXISTS', queue .. ':held', id) == 1
if job.state == WAITING and not running then
  before = redis.call('ZRANK', partition, waiting_order(job, id)) - redis.call('ZCOUNT', partition, -1, 0)
end
local due = redis.call('ZSCORE', queue .. ':due', PARTITION_IN_DUE .. terms_of(job).key)
local answer = {
  terms_of(job).key, redis.call('ZCOUNT', partition, 1, 1), before, due and string.format('%.0f', due) or '',
}
local found = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', partition, -1, 0, 'LIMIT', 0, 1000)) do
  local text = redis.call('HGET', queue .. ':jobs', member)
  if text then
    local readable_one, other = pcall(read, text)
    found[#found + 1] = {readable_one and other.generation or 0, member, text}
  end
end
table.sort(found, function(a, b) return a[1] < b[1] end)
for i = 1, math.min(#found, tonumber(ARGV[3])) do
  answer[#answer + 1] = found[i][2]
  answer[#answer + 1] = found[i][3]
  answer[#answer + 1] = redis.call('HGET', queue .. ':held', found[i][2])
end
return answer
