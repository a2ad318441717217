-- Let a script through on a server whose memory is full, which refuses the first write of a script if it needs memory; after a write that
-- needs none the rest goes through. What drains the store, or keeps leases, must go through.
if KEYS[1] then redis.call('HDEL', KEYS[1], '') end
