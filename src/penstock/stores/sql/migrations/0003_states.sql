-- Two more states: 8 waiting (for its partition), 9 grouped (collected for a batch). Both are queued:
--   due later: < 2    queued: < 4 or > 7    ended: 5 to 7

ALTER TABLE penstock_queue ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_queue ADD COLUMN grouped INTEGER NOT NULL DEFAULT 0;

-- Ended jobs keep their expiry, so this index has only queued jobs. Queries must repeat the condition on `state`.
DROP INDEX penstock_expiring;
CREATE INDEX penstock_expiring ON penstock_job (queue, expires_at)
    WHERE expires_at IS NOT NULL AND (state < 4 OR state > 7);
