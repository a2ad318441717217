-- A wake-up came to one who no longer waits: the next one shall have it, if there is work still.
-- KEYS: the queue.  ARGV: clock.  Returns nothing.
-- include: clock queue
if redis.call('EXISTS', KEYS[1] .. ':ready') == 1 and not meta(KEYS[1]).paused then wake(KEYS[1]) end
return false
