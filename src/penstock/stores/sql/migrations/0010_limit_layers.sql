-- Who has set the limits of a queue (LimitLayers as msgpack). NULL: an operator, as before.
ALTER TABLE penstock_queue ADD COLUMN limit_layers BLOB;
