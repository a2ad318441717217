-- The numbers of states and flags in records and leases (layout.py has the same), the size of a ready list, and the codes
-- in the answers of scripts, which `verbs/` decodes.

local NONE = -9007199254740992
local SCHEDULED, AVAILABLE, RETRYABLE, COMPLETED, CANCELLED, DEAD, PARKED = 0, 1, 2, 3, 4, 5, 6
local RUNNING = 7    -- only in answers: a running job is recognised by its lease
local WAITING, COLLECTING, SUSPENDED = 8, 9, 10
local IN_BATCH = ':state/9+'    -- key suffix: the members of batch jobs
-- Flags of a record. 16 (extra) and 32 (inline profile) belong to the tail. FRESH and MOVED name the list of the job;
-- both together (HIGH) mean that 8 is added to the state.
local LONG, FRESH, MOVED, HIGH = 8, 64, 128, 192
local PLAIN_MASK, PLAIN = 207, AVAILABLE + FRESH    -- a plain job: enqueued, available, without options
local ASKED_TO_STOP, ADMITTED, HAS_STEPS, PARTITION = 32768, 16384, 8192, 64    -- bits of the parts of a long record

-- Flags of a lease. The first bytes of a lease, up to the end of the token, are what its holder must present.
local CHARGED, STARTED, ASKED, SHARES_KEY, LIMITED = 1, 2, 4, 8, 64

-- Where the flags of a lease are: behind the generation (7 bytes), the size of the token, the token and `fetched_at` (8 bytes).
local function flags_at(lease)
  return 17 + (string.byte(lease, 8) or 0)
end

local function flags_of(lease)
  return string.byte(lease, flags_at(lease))
end

-- Set one flag of a lease; nothing if it is set, or if the bytes of the lease are too short.
local function set_flag(queue, id, lease, flag)
  local flags, at = flags_of(lease), flags_at(lease)
  if not flags or bit.band(flags, flag) ~= 0 then return end
  redis.call('HSET', queue .. ':held', id,
    string.sub(lease, 1, at - 1) .. string.char(flags + flag) .. string.sub(lease, at + 1))
end

local function state_of(flags)
  return flags >= HIGH and flags % 8 + 8 or flags % 8
end

local BAND = 2 ^ 40    -- the most segments of one priority
local SEGMENT = 1000   -- ids per list of the ready index; bounds the cost of removing one from the middle
local DEAD_KEPT = 7776000000    -- ms, as in job.py
local EXPIRED = 'expired: not started in time'    -- lifecycle.EXPIRED

-- The counters of a queue, in its meta (Counters in layout.py): generation, fresh, enqueued, head, segments, special.
local COUNTERS, COUNTERS_SIZE = '<dddddB', 41
-- The limits of a queue, in its meta (stored_limits.py): ten numbers, NONE for each that is not set.
local LIMITS, LIMITS_SIZE = '<dddddddddd', 80

-- Status codes, one character per item.
local NEW, EXISTS, CLOSED, DUPLICATE, REPLACED, FULL = 'n', 'x', 'c', 'd', 'r', 'f'    -- of an enqueue
local APPLIED, STALE, GONE, LATER, EARLY = 'a', 's', 'g', 'l', 'e'    -- of a settlement, or a tick of a schedule
local HELD, LOST, CANCEL_ASKED = 'h', 'l', 'c'    -- of a lease

-- The state of a job as one character.
local NOT_THERE = '-'

local function status_code(state)
  return state and string.char(48 + state) or NOT_THERE    -- 10 is ':'
end
