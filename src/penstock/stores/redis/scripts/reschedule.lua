-- Give queued jobs a new time.
-- KEYS: the queue.  ARGV: clock, delay, run_at ('' : now + delay), ids.
-- Returns a letter per job: its state before, - for none.
-- include: room clock states record queue lanes places lease letters
local due, letters = ARGV[3] == '' and now + tonumber(ARGV[2]) or tonumber(ARGV[3]), {}
for i = 4, #ARGV do
  local queue, id = KEYS[1], ARGV[i]
  local state, job = look_at(queue, id)
  letters[#letters + 1] = letter_of(state)
  if state == SCHEDULED or state == AVAILABLE or state == RETRYABLE or state == WAITING then
    take(queue, id, job)
    job.run = due
    if due <= now then
      put_available(queue, id, job)
    else
      job.state = SCHEDULED
      put(queue, id, job)
    end
  end
end
finish()
return table.concat(letters)
