-- Remove jobs.
-- KEYS: the queue.  ARGV: clock, whether to remove running jobs, too (1, 0), ids.  Returns one code per job: its state
-- before, "-" if the job does not exist. Fewer codes than ids: call again for the rest.
-- include: clock states queue record partitions places lease lookup
local queue, with_running, codes, ended, made_room = KEYS[1], ARGV[2] == '1', {}, 0, false

-- End the lease of a running job, and return the job: it is in no index. Nothing if its record cannot be read: then it
-- was set aside, and is dead.
local function end_attempt(id, held)
  local lease = read_held(held)
  local job, aside = readable(queue, id, redis.call('HGET', queue .. ':jobs', id))
  if aside then
    made_room = true
    return nil, job
  end
  remove_leases(queue, lease.token, {id}, {string.sub(held, 1, 7) .. id})
  ended = ended + 1
  if lease.flags >= LIMITED then made_room = true end
  return job
end

for i = 3, #ARGV do
  if work >= 2000 then break end    -- the caller asks again for the rest
  local id, runs = ARGV[i], nil
  local state, job, held = look_at(queue, id)
  codes[#codes + 1] = status_code(state)
  if state == RUNNING and with_running then
    runs, job = end_attempt(id, held)
    if runs then remove(queue, id, runs) end
  end
  if job and not (state == COLLECTING and batches().in_batch(job)) then
    take(queue, id, job)
    remove(queue, id, job)
  end
end
if ended > 0 then
  count_on(queue .. ':meta', 'processed', ended)
  count_on(queue .. ':days', math.floor(now / 86400000) .. '/processed', ended)
end
finish()
if made_room and not made_ready[queue] then wake_for_room(queue) end
return table.concat(codes)
