-- The numbers of states and flags in records and leases (layout.py has the same), and the size of a ready list.

local NONE = -9007199254740992
local SCHEDULED, AVAILABLE, RETRYABLE, COMPLETED, CANCELLED, DEAD, PARKED = 0, 1, 2, 3, 4, 5, 6
local RUNNING = 7    -- only in answers: a running job is recognised by its lease
local WAITING, COLLECTING, SUSPENDED = 8, 9, 10
local IN_BATCH = ':state/9+'    -- key suffix: the members of batch jobs
-- Flags of a record. 16 (extra) and 32 (inline profile) belong to the tail. FRESH and MOVED name the list of the job;
-- both together (HIGH) mean that 8 is added to the state.
local LONG, FRESH, MOVED, HIGH = 8, 64, 128, 192
local PLAIN_MASK, PLAIN = 207, AVAILABLE + FRESH    -- a plain job: enqueued, available, without options
local ASKED_TO_STOP, ADMITTED, PARTITION = 32768, 16384, 64    -- bits of the parts of a long record

-- Flags of a lease. The first bytes of a lease, up to the end of the token, are what its holder must present.
local CHARGED, STARTED, ASKED, SHARES_KEY, LIMITED = 1, 2, 4, 8, 64

local function state_of(flags)
  return flags >= HIGH and flags % 8 + 8 or flags % 8
end

local BAND = 2 ^ 40    -- the most segments of one priority
local SEGMENT = 1000   -- ids per list of the ready index; bounds the cost of removing one from the middle
local EXPIRED = 'expired: not started in time'    -- lifecycle.EXPIRED

-- The counters of a queue, in its meta (Counters in layout.py): generation, fresh, enqueued, head, segments, special.
local COUNTERS, COUNTERS_SIZE = '<dddddB', 41
