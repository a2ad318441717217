"""TLS: what is verified, what a client's options change, and the bytes of TLS that carry no data."""

from __future__ import annotations

import asyncio
import contextlib
import select
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
import uvloop

from penstock.errors import ConfigError, StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.async_connection import open_async_connection
from penstock.stores.redis.wire.calls import encoded
from penstock.stores.redis.wire.connect import connect, tls_context
from penstock.stores.redis.wire.faults import Unsent
from penstock.stores.redis.wire.sync_connection import SyncConnection
from tests.servers import RedisServer
from tests.servers.certificates import Certificates
from tests.stores.redis.both_runners import Asker, plain
from tests.stores.redis.faulty_proxy import FaultyProxy

NewRedis = Callable[..., RedisServer]

#: Its certificate names 127.0.0.1 and not this one, where it listens too.
UNNAMED = "127.0.0.2"


def certificates_of(server: RedisServer) -> Certificates:
    assert server.tls is not None
    return server.tls


async def refusal(ask: Asker, url: str) -> str:
    (answer,) = await ask.to(url)([plain("PING")])
    assert isinstance(answer, StoreError)
    assert not isinstance(answer, StoreUnavailable), "trying again would not help"
    ask.close()
    return str(answer)


# ── what is verified ─────────────────────────────────────────────────────────────────────────────


async def test_a_server_of_another_authority_is_refused(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis()
    said = await refusal(ask, f"{server.url}?ssl_ca_certs={certificates_of(server).other_ca}")
    assert server.url in said
    assert "its certificate is not trusted" in said
    assert "give ?ssl_ca_certs=FILE" in said


async def test_a_certificate_for_another_host_is_refused(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis(f"bind 127.0.0.1 {UNNAMED}")
    url = f"rediss://{UNNAMED}:{server.port}?ssl_ca_certs={certificates_of(server).ca}"
    said = await refusal(ask, url)
    assert f"IP address mismatch, certificate is not valid for '{UNNAMED}'" in said
    assert "ssl_check_hostname=false if only the name differs" in said
    assert await ask.to(f"{url}&ssl_check_hostname=false")([plain("PING")]) == [b"PONG"]


async def test_the_name_of_a_host_is_verified(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis()
    url = f"rediss://localhost:{server.port}?ssl_ca_certs={certificates_of(server).ca}"
    assert await ask.to(url)([plain("PING")]) == [b"PONG"]


async def test_a_server_that_wants_a_client_certificate_says_so(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis(client_certificates=True)
    (answer,) = await ask.to(f"{server.url}?ssl_ca_certs={certificates_of(server).ca}&timeout=1s")(
        [plain("PING")]
    )
    assert isinstance(answer, StoreError)
    assert "a client certificate" in str(answer)
    assert "give ?ssl_certfile= and ssl_keyfile=" in str(answer)


async def test_a_file_that_is_not_there_is_named(ask: Asker, new_tls_redis: NewRedis, tmp_path: Path) -> None:
    server = new_tls_redis()
    tls = certificates_of(server)
    missing = tmp_path / "missing.pem"
    for option in (
        f"ssl_ca_certs={missing}",
        f"ssl_certfile={missing}&ssl_keyfile={tls.client_key}",
        f"ssl_certfile={tls.client}&ssl_keyfile={missing}",
    ):
        said = await refusal(ask, f"{server.url}?{option}")
        assert "a file of the TLS options does not exist" in said
        assert str(missing) in said


async def test_a_file_without_certificates_is_said(
    ask: Asker, new_tls_redis: NewRedis, tmp_path: Path
) -> None:
    server = new_tls_redis()
    (tmp_path / "empty.pem").write_text("nothing\n")
    said = await refusal(ask, f"{server.url}?ssl_ca_certs={tmp_path}/empty.pem")
    assert "TLS failed" in said


def test_uvloop_verifies_too(new_tls_redis: NewRedis) -> None:
    server = new_tls_redis(f"bind 127.0.0.1 {UNNAMED}")
    tls = certificates_of(server)

    async def main(host: str, ca: Path) -> str:
        address = Address.from_url(f"rediss://{host}:{server.port}?ssl_ca_certs={ca}")
        try:
            connection = await open_async_connection(address, address.nodes[0], "calls", 5.0)
        except StoreError as error:
            return str(error)
        connection.close()
        return "it is open"

    assert uvloop.run(main("127.0.0.1", tls.ca)) == "it is open"
    assert "IP address mismatch" in uvloop.run(main(UNNAMED, tls.ca))
    assert "its certificate is not trusted" in uvloop.run(main("127.0.0.1", tls.other_ca))


# ── a client's options ───────────────────────────────────────────────────────────────────────────


async def test_the_options_of_a_client_are_used(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis(f"bind 127.0.0.1 {UNNAMED}", client_certificates=True, password="s3cret")
    tls = certificates_of(server)
    with contextlib.closing(
        redis_py.Redis(
            UNNAMED,
            server.port,
            password="s3cret",
            ssl=True,
            ssl_ca_data=tls.ca.read_text(),
            ssl_certfile=str(tls.client),
            ssl_keyfile=str(tls.client_key),
            ssl_check_hostname=False,
            ssl_min_version=ssl.TLSVersion.TLSv1_2,
            ssl_ciphers="ECDHE+AESGCM",
        )
    ) as client:
        assert client.ping()
        ask.to(Address.of(client))
    assert await ask([plain("PING")]) == [b"PONG"]


@pytest.mark.parametrize("said", [None, "none", ssl.CERT_NONE])
async def test_a_client_that_verifies_nothing(ask: Asker, new_tls_redis: NewRedis, said: Any) -> None:
    server = new_tls_redis()
    with contextlib.closing(redis_py.Redis("127.0.0.1", server.port, ssl=True, ssl_cert_reqs=said)) as client:
        assert client.ping()
        ask.to(Address.of(client))
    assert await ask([plain("PING")]) == [b"PONG"]


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({}, (ssl.CERT_REQUIRED, True)),
        ({"ssl_cert_reqs": "optional"}, (ssl.CERT_OPTIONAL, True)),
        ({"ssl_cert_reqs": "none", "ssl_check_hostname": True}, (ssl.CERT_NONE, False)),
        ({"ssl_check_hostname": False}, (ssl.CERT_REQUIRED, False)),
        ({"ssl_check_hostname": None, "ssl_ciphers": None}, (ssl.CERT_REQUIRED, True)),
    ],
)
def test_what_the_options_say_is_verified(
    options: dict[str, Any], facts: tuple[ssl.VerifyMode, bool]
) -> None:
    context = tls_context(options)
    assert (context.verify_mode, context.check_hostname) == facts


def test_versions_and_flags_of_a_client_are_used() -> None:
    flag = ssl.VERIFY_CRL_CHECK_LEAF
    assert tls_context({"ssl_min_version": "772"}).minimum_version is ssl.TLSVersion.TLSv1_3
    assert flag in tls_context({"ssl_include_verify_flags": [flag]}).verify_flags
    without = tls_context({"ssl_exclude_verify_flags": [ssl.VERIFY_X509_TRUSTED_FIRST]})
    assert ssl.VERIFY_X509_TRUSTED_FIRST not in without.verify_flags


def test_a_context_is_kept_until_one_of_its_files_changes(new_tls_redis: NewRedis, tmp_path: Path) -> None:
    tls = certificates_of(new_tls_redis())
    file = tmp_path / "ca.pem"
    file.write_bytes(tls.ca.read_bytes())
    options = {"ssl_ca_certs": str(file), "ssl_include_verify_flags": [ssl.VERIFY_X509_STRICT]}
    first = tls_context(options)
    assert tls_context(dict(options)) is first
    assert tls_context(options | {"ssl_check_hostname": False}) is not first
    renewed = tmp_path / "renewed.pem"
    renewed.write_bytes(tls.other_ca.read_bytes())
    renewed.replace(file)
    second = tls_context(options)
    assert second is not first
    assert second.get_ca_certs() != first.get_ca_certs()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"ssl_validate_ocsp": True}, "does not support ssl_validate_ocsp"),
        ({"ssl_cert_reqs": "requird"}, "did you mean 'required'"),
    ],
)
def test_an_option_that_would_not_be_applied_is_refused(option: dict[str, Any], says: str) -> None:
    pool = redis_py.ConnectionPool(connection_class=redis_py.SSLConnection, **option)
    client = redis_py.Redis(connection_pool=pool)
    with contextlib.closing(client), pytest.raises(ConfigError, match=says):
        Address.of(client)


# ── bytes without data ───────────────────────────────────────────────────────────────────────────


def connected(server: RedisServer, port: int | None = None) -> SyncConnection:
    """A connection before its first byte, with the server's session tickets waiting to be read."""
    url = f"rediss://127.0.0.1:{port or server.port}?ssl_ca_certs={certificates_of(server).ca}"
    address = Address.from_url(url)
    sock, _ = connect(address, address.nodes[0], "calls", 5.0)
    assert select.select([sock], [], [], 10)[0], "TLS 1.3 sends session tickets after its handshake"
    return SyncConnection(sock)


def test_session_tickets_are_no_end_of_the_connection(new_tls_redis: NewRedis) -> None:
    with contextlib.closing(connected(new_tls_redis())) as connection:
        assert connection.ask(encoded("PING"), 1, time.monotonic() + 5) == [b"PONG"]
        assert connection.ask(encoded("PING"), 1, time.monotonic() + 5) == [b"PONG"]


def test_an_end_behind_session_tickets_is_seen_before_anything_is_sent(new_tls_redis: NewRedis) -> None:
    server = new_tls_redis()
    with FaultyProxy(server.port) as proxy, contextlib.closing(connected(server, proxy.port)) as connection:
        proxy.cut()
        hung_up = select.poll()
        hung_up.register(connection._sock, select.POLLRDHUP)
        assert hung_up.poll(10_000)
        with pytest.raises(Unsent, match="it closed the connection"):
            connection.ask(encoded("PING"), 1, time.monotonic() + 5)


async def test_a_connection_that_was_closed_while_idle_is_replaced(
    ask: Asker, new_tls_redis: NewRedis
) -> None:
    server = new_tls_redis()
    ask.to(f"{server.url}?ssl_ca_certs={certificates_of(server).ca}")
    assert await ask([plain("PING")]) == [b"PONG"]
    with server.patient_client() as client:
        await asyncio.to_thread(client.client_kill_filter, skipme=True, _type="normal")
        assert await ask([plain("PING")]) == [b"PONG"]


async def test_a_handshake_given_up_at_its_end_leaves_no_socket_behind(new_tls_redis: NewRedis) -> None:
    """Its number would belong to another connection while the loop still watches it for the first one."""
    server = new_tls_redis()
    address = Address.from_url(f"{server.url}?ssl_ca_certs={certificates_of(server).ca}")
    (node,) = address.nodes
    given_up = 0
    for turns in range(10, 50):
        opening = asyncio.create_task(open_async_connection(address, node, "calls", 0.03))
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(0.04)  # the loop is busy when the handshake ends and its time is over
        try:
            (await opening).close()
        except StoreError:
            given_up += 1
        (await open_async_connection(address, node, "calls", 10)).close()
    assert given_up
