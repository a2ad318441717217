"""The test suites of lmstfy's Go clients, unchanged, pass against `penstock serve --lmstfy`.

Both come from the Go module proxy, into Go's module cache. The setup of the suite in lmstfy's own repository
would start a Redis in Docker for lmstfy and says where lmstfy listens; that one file, which is no test, is
replaced. The suite of bitleak/go-lmstfy-client dials the ports 7777 and 7778. Some proxies refuse that
module: then Go asks its repository, or PENSTOCK_GO_LMSTFY_CLIENT may name a checkout. Without either, this
suite is skipped with the reason, and that of lmstfy's repository is the foreign suite that runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.go_programs import lmstfy_folder
from tests.servers import redis_server
from tests.test_house import SRC

GO_LMSTFY_CLIENT = "github.com/bitleak/go-lmstfy-client@v0.0.0-20210510132526-6ea62f90d15b"
CHECKOUT = os.environ.get("PENSTOCK_GO_LMSTFY_CLIENT", "")
#: What that suite expects of the server: see its scripts/setup.sh.
PORTS = (7777, 7778)
NAMESPACE, TOKEN = "test-ns", "01F4CKPFY8XYVH6WVEQB3747CW"

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go, which is not installed"),
]


@pytest.fixture(params=["redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with redis_server(appendonly=True) as server:
        yield server.url


@contextmanager
def serving(
    url: str, tmp_path: Path, port: int = 0, admin_port: int = 0, *, processes: int = 1
) -> Iterator[tuple[int, int]]:
    """Run `penstock serve --lmstfy`; yields its two ports."""
    command = [sys.executable, "-m", "penstock", "serve", "--lmstfy", "--url", url, "--json"]
    command += ["--port", str(port), "--admin-port", str(admin_port), "--processes", str(processes)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env["PYTHONPATH"] = str(SRC)
    server = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        shown = server.stdout.readline()
        assert shown, "the server has not started"
        facts = json.loads(shown)
        yield facts["port"], facts["admin_port"]
    finally:
        server.terminate()
        assert server.wait(60) == 0
        if server.stdout is not None:
            server.stdout.close()


def go(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def source_of(module: str, home: Path) -> Path:
    """A copy of this module's source that can be written to. Skips the test if it cannot be had.

    After any refusal of a proxy the next one is asked, and in the end the repository; Go's default asks them
    only after a 404.
    """
    proxies = go("env", "GOPROXY", cwd=home).stdout.strip().replace(",", "|")
    found = go("mod", "download", "-json", module, cwd=home, GOPROXY=proxies)
    facts = json.loads(found.stdout or "{}")
    if "Dir" not in facts:
        pytest.skip(f"none of {proxies} gives {module}: {facts.get('Error', found.stderr)[:300]}")
    copy = home / "source"
    shutil.copytree(facts["Dir"], copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


@pytest.fixture(scope="module")
def go_lmstfy_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of bitleak/go-lmstfy-client."""
    return Path(CHECKOUT) if CHECKOUT else source_of(GO_LMSTFY_CLIENT, tmp_path_factory.mktemp("client"))


@pytest.fixture
def fixed_ports() -> Iterator[None]:
    """The ports that the suite dials, for one test of this machine at a time."""
    with open(Path(tempfile.gettempdir()) / "penstock-tests-port-7777", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for port in PORTS:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    pytest.skip(f"port {port} is in use, which the suite dials")
        yield


@pytest.fixture(scope="session")
def lmstfy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with lmstfy and its test suite, built."""
    return lmstfy_folder(tmp_path_factory)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_suite_of_the_client_in_lmstfys_repository_passes(
    url: str, lmstfy: Path, tmp_path: Path, processes: int
) -> None:
    with serving(url, tmp_path, processes=processes) as (port, admin_port):
        env = {**os.environ, "LMSTFY_PORT": str(port), "LMSTFY_ADMIN_PORT": str(admin_port)}
        command = [lmstfy / "client.test", "-test.v"]
        folder = lmstfy / "source" / "client"
        ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("--- PASS: Test") >= 20, ran.stdout
    assert "--- SKIP" not in ran.stdout


@pytest.mark.usefixtures("fixed_ports")
def test_the_suite_of_go_lmstfy_client_passes(go_lmstfy_client: Path, url: str, tmp_path: Path) -> None:
    with serving(url, tmp_path, *PORTS) as (_, admin_port):
        form = urllib.parse.urlencode({"description": "test", "token": TOKEN}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/token/{NAMESPACE}", form) as made:
            assert made.status == 201
        ran = go("test", "-count=1", "-v", "./...", cwd=go_lmstfy_client)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("--- PASS: Test") >= 16, ran.stdout
