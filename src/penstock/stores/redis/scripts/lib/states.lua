-- The numbers by which records and leases name things; records.py has them too.

local NONE = -9007199254740992
local SCHEDULED, AVAILABLE, RETRYABLE, COMPLETED, CANCELLED, DEAD, PARKED = 0, 1, 2, 3, 4, 5, 6
-- flags; 16 (extra) and 32 (inline profile) belong to the tail, the last two say in which list it stands
local LONG, FRESH, MOVED = 8, 64, 128

-- A lease: whose it is. Its first bytes, up to the token's end, are what a holder has to show.
local CHARGED, STARTED, ASKED, KEYED = 1, 2, 4, 8

local EXPIRED = 'expired: not started in time'    -- lifecycle.EXPIRED
