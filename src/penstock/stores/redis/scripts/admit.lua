-- Whether a queue takes the jobs with which a flow of another slot of a Cluster starts.
-- KEYS: the queue.  ARGV: clock, number of jobs.  Returns {} if it does; else {CLOSED}, or {FULL, the refusal
-- (`count_new` in limits.lua)}.
-- include: clock states queue
return {not_admitted(KEYS[1], tonumber(ARGV[2]))}
