"""Real Redis servers for tests, on free loopback ports, each in its own folder.

    with redis_server(appendonly=True) as server:
        server.client().set("a", 1)
        server.kill()
        server.start_again()   # the same port, the same data

Every function here returns a server that answers. Leaving the `with` block (or `close()`) stops it and
removes its folder. A server that was not closed ends with the process that started it, even if that process
is killed.
"""

from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster, redis_cluster
from tests.servers.programs import redis_program, server_or_skip, until
from tests.servers.sentinels import Sentinels, redis_sentinels
from tests.servers.shared import SHARED_CLUSTER, SHARED_REDIS, remove_keys
from tests.servers.single import RedisServer, redis_server
from tests.servers.tls import redis_tls_server

__all__ = [
    "SHARED_CLUSTER",
    "SHARED_REDIS",
    "Certificates",
    "Cluster",
    "RedisServer",
    "Sentinels",
    "redis_cluster",
    "redis_program",
    "redis_sentinels",
    "redis_server",
    "redis_tls_server",
    "remove_keys",
    "server_or_skip",
    "until",
]
