-- Make ended or queued jobs available now, as if they were new.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), attempts left ('': all), expiry (ms from now, '' for none,
-- "keep" unless it has passed), 1: also completed jobs, ids.
-- Returns {0, one code per job: its state before, "-" if the job does not exist, the highest generation}. Fewer codes
-- than ids: call again for the rest.
-- include: size_check clock states state_codes queue record partitions places lease lookup
local queue, codes = KEYS[1], {}
minted = tonumber(ARGV[2])
local left, expires_in, keeps_expiry = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[4] == 'keep'

-- The count of attempts of a job that is to have this many left; its profile has the most of them.
local function attempts_counted(job)
  if not left then return 0 end
  local _, _, rest = profile(queue, job)
  local ok, facts = pcall(cmsgpack.unpack, rest)
  return ok and type(facts) == 'table' and math.max(0, (tonumber(facts[3]) or 0) - left) or 0
end

local function retry_job(id, job)
  if is_stand_in(job) then return end
  local before, ended = job.state, ended_state(job.state)
  take(queue, id, job)
  job.attempt, job.lost, job.run, job.ended, job.asked = attempts_counted(job), 0, now, nil, false
  job.result, job.reason = nil, nil
  if ended and job.flow then note_flow(queue, id, job, AVAILABLE) end
  if not keeps_expiry then
    job.expires = expires_in and now + expires_in
  elseif job.expires and job.expires <= now then
    job.expires = nil
  end
  if job.unique then shift_key(queue, id, job, phase_of(before), QUEUED_PHASE) end
  if not job.batch then
    put_available(queue, id, job)
  elseif batches().is_batch(job) then
    put_available(queue, id, job)
    if ended then batches().bring_back_members(queue, id, job) end
  else
    batches().make_batch(queue, {{id, job}})
  end
end

for i = 6, #ARGV do
  if work >= 2000 then break end    -- the caller asks again for the rest
  local id = ARGV[i]
  local state, job = look_at(queue, id)
  codes[#codes + 1] = status_code(state)
  local batch = job and job.batch and batches().batch_of(job)
  if batch then    -- a retry of one member retries the whole batch
    local batch_state, batch_job = look_at(queue, batch)
    if batch_state and not (batch_job and is_stand_in(batch_job)) then
      id, state, job = batch, batch_state, batch_job
    end
  end
  if state and state ~= RUNNING and (state ~= COMPLETED or ARGV[5] == '1') then retry_job(id, job) end
end
finish()
return {0, table.concat(codes), string.format('%.0f', minted)}
