-- The total of enqueued jobs of a queue at the first sample of each period: the difference of two is what was enqueued.

-- total: NULL in periods that were sampled before this column; 0 at the first sample of a queue.
ALTER TABLE penstock_depth ADD COLUMN total INTEGER;
