-- Note that jobs wait for signals no more.
-- KEYS: the signals of the namespace.  ARGV: clock, then per wait: name, key, id of the job, the wait.  Returns nothing.
-- include: clock states signals
for i = 2, #ARGV, 4 do drop_wait(members_of(unpack(ARGV, i, i + 3))) end
