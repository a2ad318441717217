-- Pass a wake-up on to the next waiter if its reason is still valid, because its receiver has stopped waiting.
-- KEYS: the queue.  ARGV: clock, the kind of the message (w: work, d: a job is due soon).  Returns nothing.
-- include: clock states queue
local queue = KEYS[1]
if ARGV[2] == DUE_MESSAGE then
  local due = first_due(queue)
  if due then wake_for(queue, due) end
else
  wake_for_room(queue)
end
return false
