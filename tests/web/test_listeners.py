"""Listeners with TLS and on Unix sockets, their certificates and files, and the log of requests."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.errors import ConfigError
from penstock.web.sockets import UnixSocket, bind_tcp
from penstock.web.tls import Tls
from tests.servers.certificates import certificates
from tests.servers.programs import server_or_skip
from tests.web.conftest import Served
from tests.web.programs import SOON, running
from tests.web.wire import Client

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pair(home: Path) -> tuple[Path, Path]:
    """A certificate and its key, which a test may replace."""
    made = certificates()
    shutil.copy(made.server, home / "cert.pem")
    shutil.copy(made.server_key, home / "key.pem")
    return home / "cert.pem", home / "key.pem"


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates().ca)
    context.check_hostname = False
    return context


# --- TLS ----------------------------------------------------------------------------------------


@pytest.mark.system
async def test_both_listeners_serve_https(home: Path, pair: tuple[Path, Path]) -> None:
    options = ("--tls-cert", str(pair[0]), "--tls-key", str(pair[1]))
    async with running(home, "--no-tokens", *options) as program:
        client = program.client(tls=trusting())
        assert (await client.put("/api/ns/q", b"x" * 300_000)).status == 201
        assert (await client.get("/api/ns/q")).data == b"x" * 300_000
        assert (await program.admin(tls=trusting()).get("/livez")).status == 200
        plain = program.client()
        with pytest.raises((OSError, EOFError)):
            await plain.get("/api/ns/q")
        waiting = asyncio.create_task(client.get("/api/ns/q?timeout=600"))
        assert (await program.client(tls=trusting()).get("/api/ns/other")).status == 404
        program.process.terminate()
        async with asyncio.timeout(SOON):
            assert (await waiting).status == 404
        assert await program.ended() == 0


@pytest.mark.system
async def test_a_reload_replaces_the_certificate_and_drops_no_connection(
    home: Path, pair: tuple[Path, Path]
) -> None:
    options = ("--tls-cert", str(pair[0]), "--tls-key", str(pair[1]))
    async with running(home, "--no-tokens", *options) as program:
        trust = trusting()
        old = program.client(tls=trust)
        waiting = asyncio.create_task(old.get("/api/ns/q?timeout=600"))
        admin = program.admin(tls=trust)
        before = await admin.certificate()
        shutil.copy(certificates().client, pair[0])  # does not fit the key
        refused = await admin.request("POST", "/reload")
        assert refused.status == 400
        assert "are not a certificate and its key" in refused.json["error"]
        assert await program.client(tls=trust).certificate() == before
        shutil.copy(certificates().client_key, pair[1])
        assert (await admin.request("POST", "/reload")).status == 200
        new = program.client(tls=trust)
        assert await new.certificate() not in (before, b"")
        await new.put("/api/ns/q", b"x")
        assert (await waiting).data == b"x"


def _loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    try:
        import uvloop
    except ImportError:
        return [asyncio.new_event_loop]
    return [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", _loops())
@pytest.mark.parametrize("types", [("ec", "rsa"), ("rsa", "ec")])
def test_a_reload_takes_a_key_of_another_type(
    home: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], types: tuple[str, str]
) -> None:
    certificate, key = home / "cert.pem", home / "key.pem"

    def make(kind: str) -> bytes:
        new = {"rsa": ["rsa:2048"], "ec": ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]}[kind]
        command = [server_or_skip("openssl"), "req", "-x509", "-newkey", *new, "-nodes", "-subj", "/CN=x"]
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        return ssl.PEM_cert_to_DER_cert(certificate.read_text())

    async def shown(port: int) -> bytes:
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async def check() -> None:
        first = make(types[0])
        tls = Tls(certificate, key)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls.context)
        port = server.sockets[0].getsockname()[1]
        assert await shown(port) == first
        second = make(types[1])
        tls.reload()
        assert await shown(port) == second
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


def test_files_that_are_no_certificate_are_refused(home: Path, pair: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem: there is no such file"):
        Tls(home / "missing.pem", pair[1])
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        Tls(pair[1], pair[1])
    encrypted = home / "encrypted.pem"
    made = ["openssl", "pkey", "-aes256", "-passout", "pass:secret", "-in", pair[1], "-out", encrypted]
    subprocess.run(made, check=True, capture_output=True)
    with pytest.raises(ConfigError, match="is encrypted"):
        Tls(pair[0], encrypted)


# --- sockets ------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_unix_socket_serves_those_who_may_open_it(home: Path, processes: int) -> None:
    path, admin = home / "data.sock", home / "admin.sock"
    options = ("--unix", str(path), "--admin-unix", str(admin), "--unix-mode", "0660")
    async with running(home, "--no-tokens", *options, "--processes", str(processes)) as program:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        client = program.client(path=path)
        assert (await client.put("/api/ns/q", b"x")).status == 201
        assert (await program.client(path=path).get("/api/ns/q")).data == b"x"
        assert (await program.admin(path=admin).get("/livez")).status == 200
        with pytest.raises(ConfigError, match="another server listens"):
            UnixSocket(path)
        program.process.terminate()
        assert await program.ended() == 0
    assert not path.exists()
    assert not admin.exists()


def test_the_socket_of_a_killed_server_is_replaced(home: Path) -> None:
    path = home / "data.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    new = UnixSocket(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    new.remove()
    assert not path.exists()
    new.socket.close()


def test_a_file_that_is_no_socket_is_kept(home: Path) -> None:
    path = home / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is no socket"):
        UnixSocket(path)
    assert path.read_text() == "mine"


def test_each_address_of_a_name_has_the_same_port() -> None:
    made = bind_tcp("localhost", 0, 2)
    ports = {one.getsockname()[1] for sockets in made for one in sockets}
    assert len(made) == 2
    assert len(ports) == 1
    for one in {one for sockets in made for one in sockets}:
        one.close()


# --- the log of requests ------------------------------------------------------------------------


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    shown: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logger = logging.getLogger("penstock.access")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield shown
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def test_requests_are_logged_while_the_switch_is_on(local: Served, lines: list[str]) -> None:
    client, admin = local.client(), local.admin()
    await client.get("/api/ns/q")
    assert lines == []
    assert (await admin.get("/accesslog")).body == b'{"status":"disabled"}'
    assert (await admin.request("POST", "/accesslog?status=enable")).body == b'{"status":"enabled"}'
    assert (await admin.request("POST", "/accesslog?status=on")).body == b'{"error":"invalid status"}'
    lines.clear()
    made = await client.put("/api/ns/q?ttl=5&token=my-secret-token", b"x")
    await client.put("/api/ns/q?tries=0")
    await client.get("/api/ns/empty")
    first, second, third = lines
    assert first.startswith(
        "INFO listener=data ip=127.0.0.1 method=PUT path=/api/ns/q query=ttl=5&token=*** "
    )
    assert re.search(rf" pool=default code=201 latency=\d+ req_id={made.headers['X-Request-Id']}$", first)
    assert (second[:7], second.count(" code=400 ")) == ("WARNING", 1)
    assert (third[:4], third.count(" code=404 ")) == ("INFO", 1)
    await admin.request("POST", "/accesslog?status=disable")
    lines.clear()
    await client.get("/api/ns/q")
    assert lines == []


async def test_the_log_of_requests_shows_no_token_of_a_path(local: Served, lines: list[str]) -> None:
    local.service.operations.access_log.switch(True)
    await local.admin().get("/token/ns/my-secret-token/limit")
    await local.admin().request("DELETE", "/token/ns/my-secret-token")
    assert [line.split(" path=")[1].split(" ")[0] for line in lines] == [
        "/token/ns/***/limit",
        "/token/ns/***",
    ]


async def test_a_client_that_is_gone_is_logged_without_a_status(local: Served, lines: list[str]) -> None:
    local.service.operations.access_log.switch(True)
    client: Client = local.client()
    await client.send("GET", "/api/ns/q?timeout=600")
    async with asyncio.timeout(SOON):
        while not local.service.backends["default"].dispatcher.waiting:
            await asyncio.sleep(0.001)
        await client.close()
        while not lines:
            await asyncio.sleep(0.001)
    assert " pool=default code=0 " in lines[0]


async def test_a_pool_that_does_not_exist_is_not_logged(local: Served, lines: list[str]) -> None:
    local.service.operations.access_log.switch(True)
    assert (await local.client().get("/api/ns/q?token=a%0Aline:x")).status == 404
    assert " pool= code=404 " in lines[0]
