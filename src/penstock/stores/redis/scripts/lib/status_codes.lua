-- Status codes in the answers of scripts, one character per item; `verbs/` decodes them.

local NEW, EXISTS, CLOSED, DUPLICATE, REPLACED, FULL = 'n', 'x', 'c', 'd', 'r', 'f'    -- of an enqueue
local APPLIED, STALE, GONE, LATER, EARLY = 'a', 's', 'g', 'l', 'e'    -- of a settlement, or a tick of a schedule
local HELD, LOST, CANCEL_ASKED = 'h', 'l', 'c'    -- of a lease
