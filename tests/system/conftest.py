"""Real processes on real files: each test has its own folder, and leaves nothing behind.

Tests read what processes did from the record that their tasks write (see tasks.py) and from their logs. Times
of several processes are compared by CLOCK_MONOTONIC, which is common to the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.client.handle import Handle
from penstock.core.job import Job, State
from penstock.stores.contract import WorkerInfo
from penstock.stores.sqlite.fair_write_lock import FairWriteLock
from penstock.verify import processes

#: No test waits longer than this for something that should happen soon (s).
PATIENCE = 60.0

Line = dict[str, Any]

_MODULES = itertools.count()


#: The shortest time after which a supervisor kills a child that hangs: 2 s past the job's timeout.
IMPATIENT = {"PENSTOCK_KILL_GRACE": "2s", "PENSTOCK_THREAD_GRACE": "0s"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.system)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder with tasks and a store, and the processes that a test starts there."""
    if os.name != "posix":
        pytest.skip("these tests speak in POSIX signals")
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.close()


class Place:
    """A folder, its `tasks.py`, its store `jobs.db`, and the processes that were started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "jobs.db"
        self.url = f"sqlite:///{self.file}"
        self.programs: list[Program] = []
        shutil.copy(Path(__file__).with_name("tasks.py"), folder / "tasks.py")
        self.run_dir("run")
        self._tasks: ModuleType | None = None
        self._offset = 0
        self._lines: list[Line] = []

    # ── the test's own side ──────────────────────────────────────────────────────────────────────

    @property
    def tasks(self) -> Any:
        """The tasks, in the test's own process: to enqueue them."""
        if self._tasks is None:
            spec = importlib.util.spec_from_file_location(f"tasks_{next(_MODULES)}", self.folder / "tasks.py")
            assert spec is not None
            assert spec.loader is not None
            self._tasks = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self._tasks)
        return self._tasks

    @property
    def app(self) -> Any:
        return self.tasks.app

    def open(self, gate: str) -> None:
        """Let the tasks go on that are held by it."""
        (self.folder / gate).touch()

    def jobs(self, handles: list[Handle[Any]]) -> list[Job]:
        found = self.app.store.sync.get([handle.ref for handle in handles])
        assert None not in found, "a job is gone"
        return found

    def counts(self, queue: str = "default") -> dict[State, int]:
        """How many jobs of a queue are in each state, as the store says."""
        for info in self.app.store.sync.queues():
            if info.name == queue:
                return {state: n for state, n in info.counts.items() if n}
        return {}

    def workers(self) -> list[WorkerInfo]:
        return asyncio.run(self.app.store.workers())

    # ── processes ────────────────────────────────────────────────────────────────────────────────

    def env(self, **more: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        clean["XDG_RUNTIME_DIR"] = str(self.folder / "run")
        # a worker should start as fast as where it is installed, whatever this environment says
        clean.pop("PYTHONDONTWRITEBYTECODE", None)
        return {**clean, **more}

    def run_dir(self, name: str) -> str:
        """A directory for proofs of life; two workers with two of them are as in two containers."""
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        return str(path)

    def start(self, *command: str, log: int | None = None, **env: str) -> Program:
        """Start a process in this place, in a session of its own; `log`: where its output goes."""
        number = len(self.programs)
        program = Program([sys.executable, *command], self.folder, self.env(**env), number, log)
        self.programs.append(program)
        return program

    def worker(self, *options: str, ready: int = 1, **env: str) -> Program:
        """`penstock worker tasks:app`, once so many of its processes (`ready`) serve."""
        program = self.start("-m", "penstock", "worker", "tasks:app", *options, **env)
        if ready:
            self.until(lambda: program.log.count(" serves ") >= ready, "the worker serves")
        return program

    def lone(
        self, *, concurrency: int = 20, ready: bool = True, prefix: tuple[str, ...] = (), **env: str
    ) -> Program:
        """A worker without a supervisor, as a program embeds it."""
        (self.folder / "lone.py").write_text(_LONE)
        command = [*prefix, sys.executable, "lone.py", str(concurrency)]
        program = Program(command, self.folder, self.env(**env), len(self.programs))
        self.programs.append(program)
        if ready:
            self.until(lambda: " serves " in program.log, "the worker serves")
        return program

    def penstock(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ours to its end."""
        return subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            cwd=self.folder,
            env=self.env(**env),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def suspend(self, send: Callable[[int], None]) -> None:
        """SIGSTOP by `send`, outside a write: a file is busy for everybody while its writer is stopped."""
        send(signal.SIGSTOP)
        while not self._can_write():
            send(signal.SIGCONT)
            send(signal.SIGSTOP)

    def _can_write(self) -> bool:
        """Whether the file's write lock is to be had: who has it for a second is stopped."""
        lock = FairWriteLock(Path(f"{self.file}-penstock"))
        lock.open()
        ends = time.monotonic() + 1.0
        try:
            while not (taken := lock.try_acquire()) and time.monotonic() < ends:
                time.sleep(0.01)
            return taken
        finally:
            lock.close()

    # ── what happened ────────────────────────────────────────────────────────────────────────────

    def record(self, what: str = "", *, task: str = "", id: str = "") -> list[Line]:
        """The lines that tasks have written, those that fit."""
        self._read()
        return [
            line
            for line in self._lines
            if (not what or line["what"] == what)
            and (not task or line["task"] == task)
            and (not id or line["id"] == id)
        ]

    def starts(self, id: str = "", *, task: str = "") -> list[Line]:
        return self.record("start", id=id, task=task)

    def runs(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(line["id"] for line in self.starts())

    def _read(self) -> None:
        path = self.folder / "record.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._lines += [json.loads(line) for line in whole.splitlines()]

    def until(self, condition: Callable[[], Any], what: str, *, within: float = PATIENCE) -> Any:
        """Wait for something that another process does; what the condition said at last."""
        ends = time.monotonic() + within
        while True:
            said = condition()
            if said:
                return said
            if time.monotonic() > ends:
                pytest.fail(f"it did not happen within {within} s: {what}")
            time.sleep(0.01)

    def until_started(self, n: int, *, task: str = "", within: float = PATIENCE) -> list[Line]:
        """Wait until so many attempts have begun."""
        self.until(
            lambda: len(self.starts(task=task)) >= n, f"{n} start(s) of {task or 'tasks'}", within=within
        )
        return self.starts(task=task)

    def until_ended(self, handles: list[Handle[Any]], *, within: float = PATIENCE) -> list[Job]:
        """Wait until all of these jobs are at their end."""
        ended = self.app.store.sync.wait_for_end([h.ref for h in handles], timeout=int(within * 1000))
        left = [job.spec.id for job in ended if job is not None and not job.ended]
        assert not left, f"{len(left)} of {len(handles)} job(s) did not end within {within} s"
        return self.jobs(handles)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        for program in self.programs:
            program.close()
            print(f"── process {program.number}: {' '.join(program.command[1:])}\n{program.log}")
        if self._tasks is not None:
            self._tasks.app.close()


class Program:
    """A process that a test started, all that it started in turn, and what they said."""

    def __init__(
        self, command: list[str], folder: Path, env: dict[str, str], number: int, output: int | None = None
    ) -> None:
        self.command = command
        self.number = number
        self._log = folder / f"log.{number}"
        self.began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log if output is None else output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code, once it has ended."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"process {self.number} did not end within {timeout} s")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """As a terminal does with ctrl-C: everybody who did not leave the group."""
        os.killpg(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Everybody, supervisor first."""
        for pid in [self.pid, *sorted(self.session_processes() - {self.pid})]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def children(self) -> list[int]:
        """Its worker processes, if it is a supervisor."""
        return processes.children(self.pid)

    def session_processes(self) -> set[int]:
        """It and all that it started, parents dead or alive: who is in its session, and not a zombie."""
        return set(processes.session_processes(self.pid))

    def close(self) -> None:
        """End it and whatever is left of what it started."""
        for _ in range(3):  # who is just being started is seen the next time
            for pid in self.session_processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(PATIENCE)


_LONE = '''\
"""A program with a worker in it."""

import asyncio
import logging
import signal
import sys

from penstock import Worker
from penstock.config import load
from tasks import app

logging.basicConfig(level="INFO", format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")


async def main() -> None:
    worker = Worker(app, concurrency=int(sys.argv[1]), config=load().config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
'''


#: Runs the command in its arguments as `nohup` does: with SIGHUP ignored.
NOHUP = """\
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


def begins_nothing_twice(place: Place, lease: dict[str, str]) -> tuple[Program, Program]:
    """A worker sleeps past the leases of jobs fetched ahead, which another runs: it starts none of them."""
    stale = place.lone(concurrency=1, PENSTOCK_SLOT_WAIT="60s", **lease)
    tasks = place.tasks
    place.until_ended(tasks.app.enqueue_many([tasks.quick.job(n) for n in range(300)]))
    calls = [tasks.quick.job(n) for n in range(300)]
    handles = tasks.app.enqueue_many([*calls[:50], tasks.block.job(0.7), *calls[50:]])
    place.until_started(1, task="block")
    place.suspend(stale.signal)
    in_hand = place.counts()[State.RUNNING]
    second = place.lone(concurrency=1, **lease)
    place.until_ended(handles)
    stale.signal(signal.SIGCONT)
    place.until(lambda: "late outcome ignored" in stale.log, "the stale worker notices")
    place.until(lambda: not place.counts().get(State.RUNNING), "nothing is left in its hands")
    assert in_hand > 1, "it had fetched nothing ahead: the test shows nothing"
    assert {job.state for job in place.jobs(handles)} == {State.COMPLETED}
    runs = place.runs()
    twice = [handle.id for handle in handles[51:] if runs[handle.id] > 1]
    assert not twice, f"{len(twice)} job(s) that it had not begun ran on both"
    return stale, second
