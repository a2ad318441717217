"""The command line as tests call it: in this process, with its own store."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import cli
from penstock.core.job import AttemptError, Job, NewJob, State
from penstock.core.lifecycle import UNKNOWN_TASK, Transition
from penstock.stores.connect import connect
from penstock.stores.contract import Settlement, Share, Store
from penstock.stores.job_log import JobLog, LogLine, store_logs
from tests.sqlite_files import new_url

TASKS = """
from penstock import App

app = App("sqlite:///jobs.db")
other = 7


@app.task
def greet(name: str, times: int = 1) -> str:
    return name * times


@app.task(queue="mail")
async def send(to: str) -> None: ...
"""


class Cli:
    """Runs commands in this process, against one store."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *words: str, input: str | None = None, url: bool = True) -> Result:
        where = ("--url", self.url) if url else ()
        return CliRunner().invoke(
            cli, [*where, *words], input=input, catch_exceptions=False, prog_name="penstock"
        )

    def ok(self, *words: str, **more: Any) -> str:
        """What it prints, of a command that must succeed."""
        result = self(*words, **more)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str, code: int = 0, **more: Any) -> Any:
        """The one document that it prints."""
        result = self(*words, "--json", **more)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def says(self, code: int, *words: str, **more: Any) -> str:
        """The one line that it complains with; nothing is on stdout."""
        result = self(*words, **more)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        line = result.stderr.rstrip("\n")
        assert line.startswith("penstock: error: "), line
        assert "\n" not in line
        return line.removeprefix("penstock: error: ")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and none of the developer's own settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    return tmp_path


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, here: Path) -> Iterator[Store]:
    """A store that the commands of this test find again by its URL."""
    url = f"memory://{here.name}" if request.param == "memory" else new_url(here)
    made = connect(url)
    made.sync.queues()  # opens it: a SQLite file comes to be
    yield made
    made.close()


#: `pytestmark = IN_A_FILE`, for commands that take no store in memory, as that would end with them.
IN_A_FILE = [
    pytest.mark.usefixtures("store"),
    pytest.mark.parametrize("store", ["sqlite"], indirect=True),
]


@pytest.fixture
def penstock(store: Store) -> Cli:
    return Cli(store.url)


@pytest.fixture
def tasks(here: Path) -> Iterator[Path]:
    """A module `tasks` with an app on sqlite:///jobs.db, here."""
    path = here / "tasks.py"
    path.write_text(TASKS)
    yield path
    sys.modules.pop("tasks", None)


@pytest.fixture
def shell(here: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real command in a process of its own."""

    def run(*words: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            cwd=here,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **more,
        )

    return run


def put(store: Store, *ids: str, **facts: Any) -> None:
    """Enqueue jobs of these ids."""
    facts.setdefault("task", "t")
    store.sync.enqueue([NewJob(id, **facts) for id in ids])


def fetch(store: Store, n: int = 1, *, queue: str = "default", worker: str = "w1") -> list[Job]:
    """Let a worker take the next jobs."""

    async def fetching() -> list[Job]:
        fetched = await store.fetch(
            [Share(queue, n, n)], limit=n, lease=60_000, worker=worker, token=f"{worker}-{n}"
        )
        return fetched.jobs

    return asyncio.run(fetching())


def kill(store: Store, n: int = 1, *, queue: str = "default") -> None:
    """Let the next jobs die of a ValueError."""

    async def killing(jobs: list[Job]) -> None:
        for job in jobs:
            error = AttemptError(
                1, 1_700_000_000_000, "ValueError", "boom", "Traceback\n  File x\nValueError: boom"
            )
            end = Transition(State.DEAD, keep=10**9, error=error, reason="the only attempt failed")
            await store.settle([Settlement(job.lease, end)])

    asyncio.run(killing(fetch(store, n, queue=queue)))


def announce(store: Store, worker: Any) -> None:
    asyncio.run(store.announce(worker))


def park(store: Store, n: int = 1, *, queue: str = "default", reason: str = "") -> None:
    """Let a worker take the next jobs that knows none of their tasks, or cannot run them for this reason."""

    async def parking(jobs: list[Job]) -> None:
        await store.settle(
            [
                Settlement(
                    job.lease,
                    Transition(State.PARKED, charge=False, reason=reason or f"{UNKNOWN_TASK}{job.task!r}"),
                )
                for job in jobs
            ]
        )

    asyncio.run(parking(fetch(store, n, queue=queue)))


def at_terminal(*words: str, columns: str = "80", **variables: str) -> str:
    """What the command writes to a terminal that is so wide."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": columns, "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    env |= variables
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words], stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65_536):
            text += part
    except OSError:  # how a terminal says that nobody is at the other end
        pass
    os.close(ours)
    assert child.wait(60) == 0, text
    return text.decode()


def logging_job(store: Store, *texts: str) -> Job:
    """A running job `a` that has logged these lines."""
    put(store, "a")
    (job,) = fetch(store, 1)
    log = JobLog()
    for text in texts:
        log.append(LogLine(1_700_000_000_000, text))
    asyncio.run(store_logs(store, [(job.lease, log)], 15_000))
    return job
