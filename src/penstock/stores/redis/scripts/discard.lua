-- Make queued and suspended jobs dead.
-- KEYS: the queue.  ARGV: clock, reason, retention of dead jobs that have none of their own (ms), ids.
-- Returns one code per job: its state before, "-" if the job does not exist. Fewer codes than ids: call again for the
-- rest.
-- include: size_check clock states state_codes queue record partitions places lease lookup
local queue, codes = KEYS[1], {}

-- The retention of a dead job: lifecycle.kept. A profile has the retention of a cancelled job, and then its fields in
-- the order of profiles.Profile.
local KEEP_DEAD = 7
local function kept(job)
  local keep, _, fields = profile(queue, job)
  local ok, values = pcall(cmsgpack.unpack, fields)
  local own = ok and type(values) == 'table' and values[KEEP_DEAD]
  return type(own) == 'number' and own or math.max(keep, tonumber(ARGV[3]))
end

for i = 4, #ARGV do
  if work >= 2000 then break end    -- the caller asks again for the rest
  local id = ARGV[i]
  local state, job = look_at(queue, id)
  codes[#codes + 1] = status_code(state)
  if job and not ended_state(state) and not (state == COLLECTING and batches().in_batch(job)) then
    take(queue, id, job)
    end_queued(queue, id, job, ARGV[2], kept(job))
  end
end
finish()
return table.concat(codes)
