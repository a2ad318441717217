-- Why somebody asked a running job to stop, until it has: then that is its reason. NULL: nobody said.
ALTER TABLE penstock_job ADD COLUMN cancel_reason TEXT;
