-- The limits of a queue (QueueLimits as msgpack), and the state of its rate limiter (stores/rate_limiter.py).
ALTER TABLE penstock_queue ADD COLUMN limits BLOB;
ALTER TABLE penstock_queue ADD COLUMN held_until INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_queue ADD COLUMN tat REAL NOT NULL DEFAULT 0;
ALTER TABLE penstock_queue ADD COLUMN drained REAL NOT NULL DEFAULT 0;
ALTER TABLE penstock_queue ADD COLUMN drained_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_queue ADD COLUMN drained_since INTEGER NOT NULL DEFAULT 0;
