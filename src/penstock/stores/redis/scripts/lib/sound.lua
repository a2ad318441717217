-- The keys of a queue hold what they should: asked before the first write, because what a script has written cannot be taken
-- back. Each of these commands is an error if its key holds something else. Not asked: the keys of waiters, which fail no call
-- (see `finish`), and those that belong to one job (see `ask_for_keys` in places.lua).
-- needs: clock states queue

do
  local KEYS_BY_COMMAND = {
    HLEN = {':meta', ':jobs', ':held', ':tokens', ':days', ':profiles', ':parked', ':unique', ':batches', ':partitions',
      ':tenants', ':periodic', ':out', ':ends', ':watchers'},
    ZCARD = {':ready', ':due', ':leases', ':expiring', ':over', ':unique/until', ':partitions/over', ':state/0', ':state/1',
      ':state/2', ':state/3', ':state/4', ':state/5', ':state/6', ':state/8', ':state/9', ':state/9+', ':state/10',
      ':ended/3', ':ended/4', ':ended/5'},
  }
  for _, queue in ipairs(KEYS) do
    for command, names in pairs(KEYS_BY_COMMAND) do
      for _, name in ipairs(names) do redis.call(command, queue .. name) end
    end
  end
end
