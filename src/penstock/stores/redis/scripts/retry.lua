-- Make ended or queued jobs available now, as new.
-- KEYS: the queue.  ARGV: clock, ids.  Returns a letter per job: its state before, - for none.
-- include: room clock states record queue lanes places lease letters
local letters = {}
for i = 2, #ARGV do
  local queue, id = KEYS[1], ARGV[i]
  local state, job = look_at(queue, id)
  letters[#letters + 1] = letter_of(state)
  if state and state ~= RUNNING then
    take(queue, id, job)
    job.attempt, job.lost, job.run, job.ended, job.asked = 0, 0, now, nil, false
    job.result, job.reason = nil, nil
    if job.expires and job.expires <= now then job.expires = nil end
    if job.unique then shift_key(queue, id, job, phase_of(state), QUEUED_PHASE) end
    put_available(queue, id, job)
  end
end
finish()
return table.concat(letters)
