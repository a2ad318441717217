-- The daily counts: fields "day/processed" and "day/failed"; day: the number of days since 1970.
-- needs: clock

local function old_days(queue)
  local oldest, found = math.floor(now / 86400000) - 90, {}
  for _, field in ipairs(redis.call('HKEYS', queue .. ':days')) do
    if (tonumber(string.match(field, '^%-?%d+')) or 0) <= oldest then found[#found + 1] = field end
  end
  return found
end
