-- uses: how many nodes still need the value of this one; -1: its result is kept with the flow.
-- swept: now flags: 1 its job was cancelled by its flow, 2 its job has run and is retried when the node starts.
ALTER TABLE penstock_flow_node ADD COLUMN uses INTEGER NOT NULL DEFAULT -1;
