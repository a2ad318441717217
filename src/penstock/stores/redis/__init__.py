"""The Redis store: jobs in Redis or Valkey, on one server, a master with Sentinels, or a Cluster."""

from penstock.core.installation import require_extra

require_extra("redis", ("hiredis",), "the Redis store")
