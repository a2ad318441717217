-- Advance the watermark of a periodic entry and enqueue its jobs, if the entry has not changed since it was read.
-- KEYS: the queue.  ARGV: clock, floor (as in enqueue), number of profiles, the profiles (digest, profile), name,
-- revision, watermark, the new watermark, not before, overlap (0 allow, 1 skip, 2 replace), the reason for a job that
-- is replaced, then per job: id, form, tail (as in enqueue).
-- Returns {APPLIED, STALE, EARLY or GONE of states.lua; the highest generation; number of jobs asked to stop;
-- one code per job: NEW, or "-" if it was skipped}.
-- include: clock states queue sound profiles leases record partitions places insert one_job periodic
local ALLOW, SKIP, SKIPPED = '0', '1', '-'
local queue, floor, at = KEYS[1], tonumber(ARGV[2]), 4 + 2 * ARGV[3]
local inline_profile = profile_keeper(4, tonumber(ARGV[3]))
local name, overlap, reason = ARGV[at], ARGV[at + 5], ARGV[at + 6]
local entry = entry_of(queue, name)
if not entry then return {GONE, ARGV[2], 0, ''} end
if entry.paused == 1 or entry.revision ~= tonumber(ARGV[at + 1]) or entry.watermark ~= tonumber(ARGV[at + 2]) then
  return {STALE, ARGV[2], 0, ''}
end
if now < tonumber(ARGV[at + 4]) then return {EARLY, ARGV[2], 0, ''} end

local function last_is_open()
  if overlap == ALLOW or entry.last == '' then return false end
  local state = find_job(queue, entry.last)
  return state and not ended_state(state)
end

local asked, codes = 0, {}
for i = at + 7, #ARGV, 3 do
  local id, form, tail = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local open, wanted = last_is_open(), true
  if open and overlap == SKIP then
    wanted = false
  elseif open then
    local _, newly_asked = cancel_job(queue, entry.last, reason)
    if newly_asked then asked = asked + 1 end
    meta(queue).size = nil    -- recount: one queued job less
  end
  local status, has
  if wanted and redis.call('HEXISTS', queue .. ':jobs', id) == 0 then
    status, has = enqueue_status(queue, form, false)
    if status == REPLACED then replace_holder(queue, has, form, tail) end
  end
  if status == NEW then
    local flags, stored = tail_of(tail, inline_profile(queue, string.sub(tail, 2, 5)))
    floor = count_up(meta(queue), floor)
    store_new(queue, id, form, floor, flags, stored)
    floor = math.max(floor, minted)
    meta(queue).enqueued = meta(queue).enqueued + 1
    entry.last, entry.enqueued = id, entry.enqueued + 1
    codes[#codes + 1] = NEW
  else
    entry.skipped = entry.skipped + 1
    codes[#codes + 1] = SKIPPED
  end
end
entry.watermark = tonumber(ARGV[at + 3])
keep_entry(queue, name, entry)
finish()
return {APPLIED, string.format('%.0f', floor), asked, table.concat(codes)}
