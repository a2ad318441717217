-- Remove an empty queue.
-- KEYS: the queue.  ARGV: clock.  Returns -1: not removed, because it has jobs, flows, or ends that are not counted; 0: removed; 1: removed, and it was
-- paused, closed or limited, or had periodic entries.
-- include: clock states queue record partitions places
local HOLDS_JOBS, REMOVED, REMOVED_WITH_SETTINGS = -1, 0, 1
local IN_USE = {':jobs', ':out', ':ends', ':flows'}
for i, name in ipairs(IN_USE) do IN_USE[i] = KEYS[1] .. name end
if redis.call('EXISTS', unpack(IN_USE)) > 0 then return HOLDS_JOBS end
local m = meta(KEYS[1])
local entries = redis.call('DEL', KEYS[1] .. ':periodic')
-- the key of the waiters is not deleted: workers may still wait for the queue's next job, and the key expires
local NAMES = {
  'meta', 'days', 'profiles', 'unique', 'unique/until', 'watchers', 'tokens', 'partitions', 'partitions/over',
  'tenants', 'ghosts', 'asides', 'errors', 'errors/last',
}
for _, name in ipairs(NAMES) do redis.call('DEL', KEYS[1] .. ':' .. name) end
if m.fair then
  for priority = -100, 100 do redis.call('UNLINK', KEYS[1] .. ':tenants/' .. priority) end
end
return (m.paused or m.closed or m.limits or entries == 1) and REMOVED_WITH_SETTINGS or REMOVED
