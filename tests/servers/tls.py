"""A Redis server with TLS."""

from __future__ import annotations

from tests.servers.certificates import certificates
from tests.servers.programs import redis_program
from tests.servers.single import RedisServer, data_server


def redis_tls_server(*settings: str, client_certificates: bool = False, password: str = "") -> RedisServer:
    """One server that speaks TLS only; its `tls` names the made.

    With `client_certificates` it wants to see one.
    """
    redis_program()
    wanted = f"tls-auth-clients {'yes' if client_certificates else 'no'}"
    return data_server(wanted, *settings, password=password, tls=certificates()).wait_ready()
