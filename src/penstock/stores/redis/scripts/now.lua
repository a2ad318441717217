-- Read the clock.
-- KEYS: any key of the namespace.  ARGV: clock.  Returns now.
-- include: clock
return string.format('%.0f', now)
