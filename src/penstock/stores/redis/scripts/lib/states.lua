-- The numbers by which records and leases name things; layout.py has them too.

local NONE = -9007199254740992
local SCHEDULED, AVAILABLE, RETRYABLE, COMPLETED, CANCELLED, DEAD, PARKED = 0, 1, 2, 3, 4, 5, 6
local RUNNING = 7    -- only in answers: a running job is known by its lease
local WAITING, COLLECTING = 8, 9
local IN_BATCH = ':state/9+'    -- the key of those that are members of batches
-- flags; 16 (extra) and 32 (inline profile) belong to the tail, the last two say in which list it stands, and
-- both together that 8 is to be added to the state
local LONG, FRESH, MOVED, HIGH = 8, 64, 128, 192
local PLAIN_MASK, PLAIN = 207, AVAILABLE + FRESH    -- of a job that was enqueued and nothing more
local ASKED_TO_STOP, ADMITTED, PARTITION = 32768, 16384, 64    -- of the bits that say what a long record has

-- A lease: whose it is. Its first bytes, up to the token's end, are what a holder has to show.
local CHARGED, STARTED, ASKED, KEYED, LIMITED = 1, 2, 4, 8, 64

local function state_of(flags)
  return flags >= HIGH and flags % 8 + 8 or flags % 8
end

local EXPIRED = 'expired: not started in time'    -- lifecycle.EXPIRED
