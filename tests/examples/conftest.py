"""Runs an example as its users would: real web servers, real workers, customers, kills and restarts.

The processes import the example through a module of the test, which adds a ledger to its app. Everything that
they write is in the test's own folder.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import App
from penstock.testing.ledger import Ledger, check
from penstock.verify import processes
from tests.servers.programs import HOST, free_port, until

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SRC = EXAMPLES.parent / "src"

#: No test waits longer than this for something that should happen soon (s).
PATIENCE = 120.0


#: Sends the order with this number; returns its id if it was accepted.
Order = Callable[[int], int | None]


class Answer(NamedTuple):
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Program:
    """A process that a test started, and all that it started in turn."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def serving(self) -> list[int]:
        """The processes that do its work: its children, without helpers of the standard library."""
        return [pid for pid in processes.children(self.pid) if "resource_tracker" not in command_of(pid)]

    def drain(self) -> int:
        """End it as an operator would; returns its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        for _ in range(3):  # what is just being started is seen the next time
            for pid in processes.session_processes(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(PATIENCE)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


class Site:
    """An example, its store, its ledger, and the programs of it that run."""

    def __init__(self, example: str, folder: Path, url: str, **env: str) -> None:
        self.folder = folder
        self.url = url
        self.ledger = Ledger(folder / "ledger")
        self.port = free_port()
        self.programs: list[Program] = []
        run = folder / "run"
        run.mkdir(mode=0o700)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        clean.pop("PYTHONDONTWRITEBYTECODE", None)  # it starts as fast as where it is installed
        self.env = {
            **clean,
            **env,
            "PENSTOCK_URL": url,
            "PENSTOCK_CONFIG": str(EXAMPLES / example / "penstock.toml"),
            "LEDGER": str(folder / "ledger"),
            "XDG_RUNTIME_DIR": str(run),
            "PYTHONPATH": os.pathsep.join([str(folder), str(EXAMPLES / example), str(SRC)]),
        }

    def run(self, *module: str) -> None:
        """Run a Python module to its end."""
        done = subprocess.run(
            [sys.executable, "-m", *module], cwd=self.folder, env=self.env, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, *module: str) -> Program:
        log = self.folder / f"log.{len(self.programs)}"
        program = Program([sys.executable, "-m", *module], self.folder, self.env, log)
        self.programs.append(program)
        return program

    def worker(self, app: str) -> Program:
        """`penstock worker` with two processes, once both of them serve."""
        worker = self.start("penstock", "worker", app, "--processes", "2", "--concurrency", "8")
        self.until(lambda: worker.log.count(" serves ") >= 2, "the worker serves", worker)
        return worker

    def web(self, *module: str) -> Program:
        """A web server, once it answers."""
        web = self.start(*module)
        self.until(self.answers, "the web server answers", web)
        return web

    def answers(self) -> bool:
        try:
            return self.request("GET", "/healthz").status == 200
        except OSError:
            return False

    def request(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request; raises OSError if the connection fails before the whole answer is there."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode())
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def until(self, condition: Callable[[], Any], what: str, program: Program | None = None) -> None:
        try:
            until(condition, what, timeout=PATIENCE)
        except Exception as error:
            raise AssertionError(f"{what}: {'' if program is None else program.log[-3000:]}") from error

    def kill_one(self, program: Program) -> None:
        """Kill -9 one of the processes that do its work, and wait for the one that replaces it."""
        before = program.serving()
        self.ledger.kill(before[0])
        self.until(
            lambda: before[0] not in (now := program.serving()) and len(now) >= len(before),
            "a new process replaces the killed one",
            program,
        )

    def restart(self, web: Program) -> None:
        """Replace the processes of a web server one by one, as after a change of its code."""
        before = set(web.serving())

        def replaced() -> bool:
            now = web.serving()
            return not before.intersection(now) and len(now) >= len(before) and self.answers()

        web.process.send_signal(signal.SIGHUP)
        self.until(replaced, "all processes are replaced", web)

    def live_through_kills_and_restarts(self, web_command: str, order: Order) -> list[int]:
        """Serve customers while processes are killed and replaced; returns the orders that were accepted.

        The app and the web application are in the module `watched`, which the test has written.
        """
        old = self.worker("watched:app")
        web = self.web(*web_command.format(port=self.port).split())
        with Customers(order) as customers:
            customers.until_accepted(20)
            self.kill_one(old)
            customers.until_accepted(20)
            new = self.worker("watched:app")  # a rolling restart: the new one first
            assert old.drain() == 0
            customers.until_accepted(20)
            self.kill_one(web)
            customers.until_accepted(20)
            self.restart(web)
            customers.until_accepted(20)
        self.drained("orders", "mail")
        assert new.drain() == 0
        assert web.drain() in (0, -signal.SIGTERM)
        for line in (old.log + new.log).splitlines():
            assert "message" in json.loads(line)  # the log is JSON, also of what was killed
        assert len(set(customers.accepted)) == len(customers.accepted) >= 100
        return customers.accepted

    def drained(self, *queues: str) -> None:
        app = App(self.url)
        try:
            for queue in queues:
                assert app.drained(queue, timeout=PATIENCE), f"jobs are left in {queue}"
        finally:
            app.close()

    def check_ledger(self) -> None:
        """Nothing was lost, nothing ran without a reason, and the kills really happened."""
        app = App(self.url)
        try:
            check(self.folder / "ledger", app.store, asked=("kill",)).require()
        finally:
            app.close()

    def close(self) -> None:
        for program in self.programs:
            program.close()
        for program in self.programs:
            print(f"── {command_of(program.pid)} {program.process.args}\n{program.log[-20_000:]}")


class Customers:
    """Threads that send orders until they are stopped; `accepted` has what was answered with success."""

    def __init__(self, order: Order, count: int = 4) -> None:
        self.accepted: list[int] = []
        self.failed = 0
        self._order = order
        self._number = iter(range(1_000_000))
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._buy) for _ in range(count)]

    def __enter__(self) -> Customers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until_accepted(self, more: int) -> None:
        wanted = len(self.accepted) + more
        until(lambda: len(self.accepted) >= wanted, f"{more} more orders are accepted", timeout=PATIENCE)

    def _buy(self) -> None:
        while not self._stop.is_set():
            try:
                order = self._order(next(self._number))
            except OSError:
                order = None
            if order is None:
                self.failed += 1
            else:
                self.accepted.append(order)
            self._stop.wait(0.08)  # at most fifty orders a second: one is always on its way


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(example: str, url: str, **env: str) -> Site:
        sites.append(Site(example, tmp_path, url, **env))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of this test alone."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server = request.getfixturevalue("new_redis")(appendonly=True)
    return str(server.url)
