-- Change jobs that are not running, as the table of core/changes.py says.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), the table, when the jobs are due (ms from now; or an instant, then
-- the former is ''), attempts left ('': all), expiry (ms from now, '' for none, "keep" unless it has passed), number of
-- arguments per job, then of each job: id, and if the number is 3 reason and result ('' or "r" and the bytes).
-- The table: per state, by its number, the new state (255: the job stays) and flags (AT_TAIL, ANEW); first for jobs that
-- are due by now, then for others.
-- Returns {0, one code per job: its state before, "-" if the job does not exist, plus CHANGED if it has changed, the
-- highest generation}. Fewer codes than jobs: call again for the rest.
-- include: size_check clock states queue sound leases record partitions places one_job
local STAYS, AT_TAIL, ANEW, CHANGED, NUMBER_OF_STATES = 255, 1, 2, 16, 11
local queue, codes = KEYS[1], {}
local due = ARGV[4] ~= '' and now + tonumber(ARGV[4]) or tonumber(ARGV[5])
local left, expires_in, keeps_expiry, width = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[7] == 'keep', tonumber(ARGV[8])
minted = tonumber(ARGV[2])

-- The new state of a job in this state, and the flags; nothing if it stays.
local function change_of(state)
  local at = 2 * (state + (due > now and NUMBER_OF_STATES or 0)) + 1
  local to, flags = string.byte(ARGV[3], at, at + 1)
  if to ~= STAYS then return to, bit.band(flags, AT_TAIL) ~= 0, bit.band(flags, ANEW) ~= 0 end
end

-- A number in the profile of a job, at its place in profiles.Profile; nothing if it is not there.
local MAX_ATTEMPTS, RETENTION, KEEP_DEAD = 3, 5, 7
local function number_in_profile(job, place)
  local _, _, fields = profile(queue, job)
  local ok, values = pcall(cmsgpack.unpack, fields)
  return ok and type(values) == 'table' and type(values[place]) == 'number' and values[place] or nil
end

-- The retention of a job that ends in this state: lifecycle.kept. A profile begins with that of a cancelled job.
local function kept(job, state)
  local keep = profile(queue, job)
  if state == COMPLETED then return number_in_profile(job, RETENTION) or keep end
  return number_in_profile(job, KEEP_DEAD) or math.max(keep, DEAD_KEPT)
end

local function start_anew(job)
  local most = left and number_in_profile(job, MAX_ATTEMPTS)
  job.attempt, job.lost = most and math.max(0, most - left) or 0, 0    -- lifecycle.attempts_counted
  job.ended, job.asked, job.reason = nil, false, nil
  if not keeps_expiry then
    job.expires = expires_in and now + expires_in
  elseif job.expires and job.expires <= now then
    job.expires = nil
  end
end

local function queue_again(id, job, to, at_tail, anew)
  job.run = due
  if not at_tail then
    job.state = to
    put(queue, id, job)
  elseif anew and job.batch and not batches().is_batch(job) then
    batches().make_batch(queue, {{id, job}})
  else
    put_available(queue, id, job)
  end
end

local function change_job(id, job, to, at_tail, anew, reason, result)
  local before, ended, ends = job.state, ended_state(job.state), ended_state(to)
  local is_batch = job.batch and batches().is_batch(job)
  take(queue, id, job)
  job.result = nil
  if anew then start_anew(job) end
  if ended and job.flow then note_flow(queue, id, job, AVAILABLE) end
  if job.unique then shift_key(queue, id, job, phase_of(before), phase_of(to)) end
  if ended and ends and is_batch then batches().bring_back_members(queue, id, job, to) end
  if ends then
    if result ~= '' then job.result = string.sub(result, 2) end
    return end_queued(queue, id, job, reason, to, kept(job, to))
  end
  queue_again(id, job, to, at_tail, anew)
  if ended and is_batch then batches().bring_back_members(queue, id, job) end
end

-- Change the job, or the batch in whose place a member is not changed; returns whether something has changed.
local function change(id, state, job, reason, result)
  local to, at_tail, anew = change_of(state)
  if to and anew and job.batch and batches().batch_of(job) then
    local batch = batches().batch_of(job)
    local batch_state, batch_job = find_job(queue, batch)
    if batch_state and not (batch_job and is_stand_in(batch_job)) then
      id, job = batch, batch_job
      to = batch_job and change_of(batch_state)
    end
  elseif to and state == COLLECTING and batches().in_batch(job) then
    return false
  end
  if not to or is_stand_in(job) then return false end
  change_job(id, job, to, at_tail, anew, reason, result)
  return true
end

for i = 9, #ARGV, width do
  if members_processed >= 2000 then break end    -- the caller asks again for the rest
  local id = ARGV[i]
  local state, job = find_job(queue, id)
  local changed = job and change(id, state, job, ARGV[i + 1], ARGV[i + 2])
  codes[#codes + 1] = changed and string.char(string.byte(status_code(state)) + CHANGED) or status_code(state)
end
finish()
return {0, table.concat(codes), string.format('%.0f', minted)}
