"""Does a store keep what we promise, on this server and with these settings? See `penstock verify`."""
