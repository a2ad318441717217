-- The state of a job as one character of an answer; `verbs/` decodes them.
-- needs: states

local NOT_THERE = '-'

local function status_code(state)
  return state and string.char(48 + state) or NOT_THERE    -- 10 is ':'
end
