-- Tell the time.
-- KEYS: any key of the namespace.  ARGV: clock.  Returns the instant.
-- include: clock
return string.format('%.0f', now)
