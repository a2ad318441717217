-- The reason of a request to stop a running job, which becomes the job's reason when it stops. NULL: none given.
ALTER TABLE penstock_job ADD COLUMN cancel_reason TEXT;
