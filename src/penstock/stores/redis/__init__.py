"""The Redis store: jobs in Redis or Valkey, on one server, a master with Sentinels, or a Cluster."""
