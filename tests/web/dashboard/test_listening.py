"""The dashboard on sockets of its own: TLS, a Unix socket, a proxy, slow and oversized clients."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path

import pytest

from penstock.core.errors import ConfigError
from penstock.web.dashboard import bounded_connection
from penstock.web.dashboard.server import DashboardListener, serve_dashboard
from tests.servers.certificates import certificates
from tests.store.facts import SOON
from tests.web.dashboard.conftest import Site

NewSite = Callable[..., Site]


@asynccontextmanager
async def served(site: Site, listener: DashboardListener) -> AsyncIterator[int]:
    """The port at which the dashboard listens until the block ends."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_ready(_: str, port: int) -> None:
        ready.set_result(port)

    serving = asyncio.create_task(serve_dashboard(site.dashboard, listener, grace=1, on_ready=on_ready))
    async with asyncio.timeout(SOON):
        yield await ready
        signal.raise_signal(signal.SIGTERM)
        assert await serving == 0


def fetched(port: int, path: str, tls: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str, str]:
    """Status, cookies and text."""
    client: http.client.HTTPConnection
    if tls is None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON)
    else:
        client = http.client.HTTPSConnection("localhost", port, timeout=SOON, context=tls)
    client.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    answer = client.getresponse()
    found = answer.status, answer.getheader("set-cookie") or "", answer.read().decode()
    client.close()
    return found


async def test_a_certificate_serves_https_and_is_read_again_at_sighup(site: Site, tmp_path: Path) -> None:
    made = certificates()
    shutil.copy(made.server, tmp_path / "cert.pem")
    shutil.copy(made.server_key, tmp_path / "key.pem")
    listener = DashboardListener(port=0, certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    trust = ssl.create_default_context(cafile=str(made.ca))
    async with served(site, listener) as port:
        status, cookies, text = await asyncio.to_thread(fetched, port, "/", trust)
        assert (status, "No queues yet" in text) == (200, True)
        assert "Secure" in cookies
        with pytest.raises((http.client.HTTPException, OSError)):
            await asyncio.to_thread(fetched, port, "/")
        old = await asyncio.to_thread(serial_of, port)
        (tmp_path / "cert.pem").write_text("garbage")
        signal.raise_signal(signal.SIGHUP)
        assert await asyncio.to_thread(serial_of, port) == old
        shutil.copy(made.client, tmp_path / "cert.pem")
        shutil.copy(made.client_key, tmp_path / "key.pem")
        signal.raise_signal(signal.SIGHUP)
        assert await asyncio.to_thread(serial_of, port) != old


def serial_of(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=SOON)


async def test_a_certificate_that_fits_no_key_is_refused(site: Site) -> None:
    made = certificates()
    listener = DashboardListener(port=0, certificate=made.server, key=made.client_key)
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        await serve_dashboard(site.dashboard, listener, grace=1, on_ready=lambda *_: None)


async def test_a_unix_socket_is_private_and_its_proxy_is_believed(new_site: NewSite, tmp_path: Path) -> None:
    path = tmp_path / "penstock.sock"
    site = new_site()
    async with served(site, DashboardListener(path=path, proxy="unix")):
        assert path.stat().st_mode & 0o777 == 0o600
        lines = "GET /login HTTP/1.1\r\nHost: jobs.example\r\nX-Forwarded-Proto: https\r\n"
        lines += "X-Forwarded-For: 203.0.113.7\r\nConnection: close\r\n\r\n"
        answer = await asyncio.to_thread(sent_to_unix, path, lines.encode())
        assert b" 200 " in answer
        assert b"Secure" in answer
    assert not path.exists()


def sent_to_unix(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SOON)
        client.connect(str(path))
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65_536), b""))


@pytest.mark.parametrize(("proxy", "believed"), [("127.0.0.1", True), ("192.0.2.1", False), (None, False)])
async def test_only_the_named_proxy_is_believed(proxy: str | None, believed: bool, site: Site) -> None:
    async with served(site, DashboardListener(port=0, proxy=proxy)) as port:
        _, cookies, _ = await asyncio.to_thread(
            fetched, port, "/login", X_Forwarded_Proto="https", X_Forwarded_For="203.0.113.7"
        )
        assert ("Secure" in cookies) is believed


async def test_slow_and_endless_requests_lose_their_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_connection, "_PATIENCE", 0.2)
    monkeypatch.setattr("penstock.web.dashboard.forms._PATIENCE", 0.2)
    async with served(site, DashboardListener(port=0)) as port:
        for begun in (b"", b"GET / HTTP/1.1\r\nHost: local", b"\r\n"):
            assert await asyncio.to_thread(sent, port, begun) == b""
        endless = b"GET / HTTP/1.1\r\nX: " + b"x" * 400_000
        assert b" 431 " in (await asyncio.to_thread(sent, port, endless) or b" 431 ")
        head = b"POST /theme HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\nConnection: close\r\n"
        form = head + b"Content-Type: application/x-www-form-urlencoded\r\n\r\nform_token="
        assert b" 408 " in await asyncio.to_thread(sent, port, form)
        large = form.replace(b": 99", b": 99999999").replace(b"close", b"keep-alive")
        assert b" 413 " in await asyncio.to_thread(sent, port, large + b"x" * 300_000, 1)
        await asyncio.to_thread(drip, port, b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert (await asyncio.to_thread(fetched, port, "/"))[0] == 200


def drip(port: int, request: bytes) -> None:
    """Send a request whose body comes in drops, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as client, suppress(ConnectionError):
        client.sendall(request)
        until = time.monotonic() + SOON
        while time.monotonic() < until:
            client.sendall(b"x")
            try:
                if not client.recv(65_536):
                    return
            except TimeoutError:
                continue
        raise AssertionError("the server has not closed the connection")


async def test_of_too_many_idle_connections_the_oldest_makes_room(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.web.dashboard.server._MOST_CONNECTIONS", 60)
    monkeypatch.setattr(bounded_connection, "_SPARE", 50)
    async with served(site, DashboardListener(port=0)) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
        assert (await asyncio.to_thread(fetched, port, "/"))[0] == 200
        assert await idle[0][0].read() == b""
        idle[-1][1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await idle[-1][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in idle:
            writer.close()


async def test_an_address_with_most_connections_makes_room(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of somebody else stays, though it has waited longest."""
    monkeypatch.setattr("penstock.web.dashboard.server._MOST_CONNECTIONS", 60)
    monkeypatch.setattr(bounded_connection, "_SPARE", 50)
    async with served(site, DashboardListener(port=0)) as port:
        other = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
        assert await crowd[0][0].read() == b""
        other[1].write(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await other[0].readline()).startswith(b"HTTP/1.1 ")
        for _, writer in (other, *crowd):
            writer.close()


async def test_a_request_behind_an_event_stream_ends_the_connection(site: Site) -> None:
    async with served(site, DashboardListener(port=0)) as port:
        head = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ordered = await asyncio.to_thread(
            sent, port, b"GET /login" + head + b"GET /events" + head + b"GET /" + head
        )
        assert ordered.count(b"HTTP/1.1 ") < 3
        async with asyncio.timeout(SOON):
            while site.dashboard._streams._open.total():
                await asyncio.sleep(0)


def sent(port: int, request: bytes, most: int = 1_000) -> bytes:
    """What comes back until the server closes the connection; nothing if it resets it."""
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as client:
        try:
            client.sendall(request)
            return b"".join(islice(iter(lambda: client.recv(65_536), b""), most))
        except ConnectionError:
            return b""
