-- Extend leases that are still held, and store progress and checkpoints.
-- KEYS: the queues.  ARGV: clock, then per heartbeat: number of the queue, id, prefix of the lease (generation and
-- token), by (ms), started (1, 0), progress, checkpoint (each '' or "=" and the bytes).
-- Returns one status code per heartbeat: HELD, LOST or CANCEL_ASKED of states.lua.
-- include: size_check clock states queue
local slow
local function slow_path()
  if slow then return slow end
  -- include: leases record
  slow = {notice_reboot = notice_reboot, read = read, write = write}
  return slow
end

local codes, ends = {}, {}
for q = 1, #KEYS do ends[q] = {} end
for i = 2, #ARGV, 7 do
  local q, id, prefix = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  local queue = KEYS[q]
  if boot then slow_path().notice_reboot(queue) end
  local held = redis.call('HGET', queue .. ':held', id)
  if not held or string.sub(held, 1, #prefix) ~= prefix then
    codes[#codes + 1] = LOST
  else
    ends[q][#ends[q] + 1] = steady + tonumber(ARGV[i + 3])
    ends[q][#ends[q] + 1] = string.sub(held, 1, 7) .. id
    codes[#codes + 1] = bit.band(flags_of(held) or 0, ASKED) ~= 0 and CANCEL_ASKED or HELD
    if ARGV[i + 4] == '1' then set_flag(queue, id, held, STARTED) end
    local progress, checkpoint = ARGV[i + 5], ARGV[i + 6]
    if progress ~= '' or checkpoint ~= '' then
      local ok, job = pcall(slow_path().read, redis.call('HGET', queue .. ':jobs', id))
      if ok then    -- an unreadable record is found when the job is settled
        if progress ~= '' then job.progress = string.sub(progress, 2) end
        if checkpoint ~= '' then job.checkpoint = string.sub(checkpoint, 2) end
        redis.call('HSET', queue .. ':jobs', id, slow.write(job))
      end
    end
  end
end
for q, queue in ipairs(KEYS) do in_steps('ZADD', queue .. ':leases', ends[q]) end
return table.concat(codes)
