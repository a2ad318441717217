-- The keys of calls that have added members to a flow, so that a repeated call adds none.
CREATE TABLE penstock_flow_addition (
    flow INTEGER NOT NULL,
    key  TEXT NOT NULL,
    PRIMARY KEY (flow, key)
) STRICT, WITHOUT ROWID;

-- parent: the job (`seq`) that waits for a flow which has not ended; 0: it has ended, and `advance_flows` sees to the flow.
ALTER TABLE penstock_flow ADD COLUMN parent INTEGER;
CREATE INDEX penstock_flow_parent ON penstock_flow (parent) WHERE parent IS NOT NULL;
