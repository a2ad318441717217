"""Jobs in Redis or Valkey: one server, a master watched by Sentinels, or a Cluster."""
