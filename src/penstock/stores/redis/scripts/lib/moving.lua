-- Change a queued job only while it is as an operator has seen it, and store a job that comes from another queue.
-- needs: clock states queue profiles record partitions places replacing insert

-- The job, if it is queued and as it was seen (job_changes.is_as_seen); else nothing. seen: generation, state, due time,
-- attempts, losses, and the SHA-1 of the payload in hexadecimal.
local function job_as_seen(queue, id, seen)
  local record = redis.call('HGET', queue .. ':jobs', id)
  if not record or redis.call('HEXISTS', queue .. ':held', id) == 1 then return nil end
  local job, aside = readable(queue, id, record)
  if aside or ended_state(job.state) or job.state == SUSPENDED then return nil end
  if job.state == COLLECTING and batches().in_batch(job) then return nil end
  local generation, state, run, attempt, lost, payload = struct.unpack('>I7B<dI4I4c40', seen)
  if job.generation ~= generation or job.state ~= state or job.run ~= run then return nil end
  if job.attempt ~= attempt or job.lost ~= lost then return nil end
  local ok, _, _, text = pcall(tail_parts, job.tail_flags, job.tail)
  if ok and redis.sha1hex(text) == payload then return job end
end

-- Store a job that comes from another queue. carried: attempts, losses, errors as in a record, whether there is a
-- checkpoint (1, 0), and the checkpoint. profile_at: where ARGV has its profile. Returns the highest generation.
local function store_moved(queue, id, form, tail, carried, floor, profile_at)
  local attempt, lost, errors, has, from = struct.unpack('<I4I4I4c0B', carried)
  local brought = {attempt = attempt, lost = lost}
  if errors ~= '' then brought.errors = errors end
  if has == 1 then brought.checkpoint = string.sub(carried, from) end
  local flags, stored = tail_of(tail, profile_keeper(profile_at, 1)(queue, string.sub(tail, 2, 5)))
  floor = count_up(meta(queue), floor)
  meta(queue).enqueued = meta(queue).enqueued + 1
  store_new(queue, id, form, floor, flags, stored, brought)
  return math.max(floor, minted, meta(queue).generation)
end
