-- Remove waits whose job waits no more.
-- KEYS: the signals of the namespace.  ARGV: clock, then per wait: its member, and the end of the wait, as find_waits.lua
-- has returned them. A wait that was repeated since then has another end, and stays.  Returns the number of removed ones.
-- include: clock states signals
local gone = 0
for i = 2, #ARGV, 2 do
  if (redis.call('ZSCORE', base .. ':waits/over', ARGV[i]) or '') == ARGV[i + 1] then
    drop_wait(ARGV[i])
    gone = gone + 1
  end
end
return gone
