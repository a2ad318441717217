-- Flows: jobs that depend on each other (docs/concepts/flows.md).

-- The node (`nid`) that a job is the job of. Such a job has the unique_phases 0 if it has no unique key, so that no
-- statement takes it for a job whose end concerns nobody else.
ALTER TABLE penstock_job ADD COLUMN flow INTEGER;

-- head: the state of the flow, as msgpack (LiveFlow). busy: something is left over for `advance_flows`.
-- over_at: when the flow is removed; NULL: it has not ended.
CREATE TABLE penstock_flow (
    fid        INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace  TEXT NOT NULL,
    queue      TEXT NOT NULL,
    id         TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    busy       INTEGER NOT NULL,
    over_at    INTEGER,
    head       BLOB NOT NULL,
    UNIQUE (namespace, queue, id)
) STRICT;
CREATE INDEX penstock_flow_place ON penstock_flow (namespace, created_at, queue, id);
CREATE INDEX penstock_flow_busy ON penstock_flow (namespace) WHERE busy = 1;
CREATE INDEX penstock_flow_over ON penstock_flow (namespace, over_at) WHERE over_at IS NOT NULL;

-- fixed: what never changes, as msgpack. job: the job to enqueue, until it is enqueued. inputs: of a join, as msgpack.
-- AUTOINCREMENT: the number of a removed node is never used again, because jobs may still name it.
CREATE TABLE penstock_flow_node (
    nid      INTEGER PRIMARY KEY AUTOINCREMENT,
    flow     INTEGER NOT NULL,
    node     INTEGER NOT NULL,
    state    TEXT NOT NULL,
    pending  INTEGER NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    swept    INTEGER NOT NULL DEFAULT 0,
    fixed    BLOB NOT NULL,
    job      BLOB,
    inputs   BLOB,
    result   BLOB
) STRICT;
CREATE UNIQUE INDEX penstock_flow_nodes ON penstock_flow_node (flow, node);
