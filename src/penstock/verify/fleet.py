"""The worker and producer processes of a run: starts them, replaces dead ones, ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.verify.processes import children, session_processes
from penstock.verify.run_folder import ROLE, VERSION, RunFolder, RunRequest, VerifyFailed

#: Number of producers, which share the rate.
_PRODUCERS = 2
#: A process is given up after this many consecutive exits within this time (s) of its start.
_QUICK_EXIT, _MOST_QUICK_EXITS = 3.0, 6


@dataclass
class Member:
    """A process of the run with its child processes; `role` is supervised, lone or producer."""

    role: str
    number: int
    command: tuple[str, ...]
    log: Path
    version: str = "1"
    process: subprocess.Popen[bytes] = field(init=False)
    started_at: float = 0.0
    log_start: int = 0  # size of the log when the process started (bytes)
    quick_exits: int = 0  # consecutive exits right after the start, without serving and without a fault
    restart_at: float | None = None  # after an exit: when to start it again (monotonic, s)
    faulted: bool = False  # a fault has hit the process since its start

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def children(self) -> list[int]:
        """The worker processes of a supervisor."""
        return children(self.pid) if self.role == "supervised" else []

    @property
    def is_serving(self) -> bool:
        """Whether the process has begun its work since its last start, according to its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.log_start)
            return b" serves " in log.read()
        return False

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the process and all its descendants."""
        for pid in session_processes(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Fleet:
    """The processes of a run. Any thread may call `replace_dead`."""

    def __init__(
        self,
        folder: RunFolder,
        request: RunRequest,
    ) -> None:
        self._folder = folder
        self._request = request
        self._lock = threading.RLock()
        self._closed = False
        self._started = 0
        self.workers: list[Member] = []
        self.producers: list[Member] = []
        self._temporary: list[Member] = []
        self._orphaned: list[int] = []  # sessions of dead processes in which a child still drains
        self._producer_starts = 0  # each start of a producer draws its load from its own seed

    @property
    def all(self) -> list[Member]:
        """All processes at this moment, including the temporary ones."""
        with self._lock:
            return [*self.workers, *self.producers, *self._temporary]

    def start(self) -> None:
        """Start the workers (every second one a supervisor with two processes), then the producers."""
        with self._lock:
            self.workers = [
                self._worker("lone" if i % 2 else "supervised", i + 1, "1", 0)
                for i in range(self._request.workers)
            ]
            self.producers = [self._producer(i + 1) for i in range(_PRODUCERS)]

    def add_temporary(self, role: str, *, version: str = "1", ahead: int = 0) -> Member:
        """Start one more worker, or producer, which is not replaced when it dies.

        The clock of a worker is `ahead` seconds ahead.
        """
        with self._lock:  # held throughout, so that `close` knows every process that was started
            if role == "producer":
                member = self._producer(0, version)
            else:
                member = self._worker(role, 0, version, ahead)
            self._temporary.append(member)
            return member

    def add_worker(self, role: str, *, version: str) -> None:
        """Start one more worker, which is replaced when it dies."""
        with self._lock:
            self.workers.append(self._worker(role, len(self.workers) + 1, version, 0))

    def _worker(self, role: str, number: int, version: str, ahead: int) -> Member:
        if role == "lone":
            command = ["-m", "penstock.verify.workload.lone", str(ahead)]
        else:
            command = [
                "-m",
                "penstock.verify.workload.supervised",
                "worker",
                "penstock.verify.workload.tasks:app",
            ]
            command += ["--processes", "2", "--concurrency", "10", "--drain-timeout", "10s"]
        return self._begin(role, number, command, version)

    def _producer(self, number: int, version: str = "1") -> Member:
        return self._begin("producer", number, self._producer_command(), version)

    def _producer_command(self) -> list[str]:
        self._producer_starts += 1
        seed, rate = f"{self._request.seed}/{self._producer_starts}", self._request.rate / _PRODUCERS
        command = ["-m", "penstock.verify.workload.producer", seed, str(rate), str(self._request.flow_share)]
        share = self._request.process_share
        return command if share is None else [*command, str(share)]

    def _begin(self, role: str, number: int, command: Sequence[str], version: str) -> Member:
        self._started += 1
        log = self._folder.logs / f"{self._started:03}-{role}.log"
        member = Member(role, number or self._started, (sys.executable, *command), log, version)
        self._launch(member)
        return member

    def _launch(self, member: Member) -> None:
        with self._lock:
            if self._closed:
                raise VerifyFailed("the run is over: no process is started any more")
            with member.log.open("ab") as log:
                member.log_start = log.tell()
                member.process = subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
                    member.command,
                    env=self._folder.env(**{ROLE: member.role, VERSION: member.version}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C goes to the conductor alone
                )
            member.started_at, member.restart_at, member.faulted = time.monotonic(), None, False

    def wait_ready(self, timeout: float) -> None:
        """Wait until all workers serve. Raises VerifyFailed."""
        deadline = time.monotonic() + timeout
        while waiting := [member for member in self.workers if not member.is_serving]:
            dead = [member for member in waiting if not member.alive]
            if dead or time.monotonic() > deadline:
                what = "ended at once" if dead else f"did not begin to work within {timeout:.0f} s"
                names = ", ".join(member.name for member in dead or waiting)
                raise VerifyFailed(f"{names} {what}: {self._folder.log_tail()}")
            time.sleep(0.05)

    def replace_dead(self) -> None:
        """Replace dead workers and producers.

        A process that exits right after its start is restarted a second later each time, because its cause
        (e.g. a full disk) may pass. After six such exits in a row: raises VerifyFailed.
        """
        with self._lock:
            if self._closed:
                return
            self._orphaned = [pid for pid in self._orphaned if session_processes(pid)]
            self._temporary = [one for one in self._temporary if one.alive or session_processes(one.pid)]
            for member in (*self.workers, *self.producers):
                if not member.alive and self._is_due(member):
                    self._replace(member)

    def _is_due(self, member: Member) -> bool:
        now = time.monotonic()
        if member.restart_at is None:
            at_once = now - member.started_at < _QUICK_EXIT and not (member.faulted or member.is_serving)
            member.quick_exits = member.quick_exits + 1 if at_once else 0
            if member.quick_exits >= _MOST_QUICK_EXITS:
                raise VerifyFailed(f"{member.name} does not stay alive: {self._folder.log_tail()}")
            member.restart_at = now + max(0, member.quick_exits - 1)
        return now >= member.restart_at

    def _replace(self, member: Member) -> None:
        self._orphaned.append(member.pid)  # the children of a killed supervisor still drain
        if member.role == "producer":
            member.command = (sys.executable, *self._producer_command())
        self._launch(member)

    @contextlib.contextmanager
    def without_starts(self) -> Iterator[Callable[[], list[int]]]:
        """Start no process meanwhile. Yields a function that lists all living processes, orphans included."""
        with self._lock:
            leaders = [*(member.pid for member in self.all), *self._orphaned]
            yield lambda: [pid for leader in leaders for pid in session_processes(leader)]

    def end_producers(self, timeout: float = 20.0) -> None:
        """Stop the producers."""
        with self._lock:
            leaving, self.producers = self.producers, []
            self._orphaned += [member.pid for member in leaving]
        _end(leaving, timeout)

    def end_workers(self, timeout: float = 40.0) -> list[Member]:
        """Drain and stop all workers. Returns those that had to be killed."""
        with self._lock:
            leaving, self.workers, self._temporary = [*self.workers, *self._temporary], [], []
            self._orphaned += [member.pid for member in leaving]
        late = _end(leaving, timeout)
        with self._lock:  # the system may reuse the number of a finished session
            self._orphaned = [pid for pid in self._orphaned if session_processes(pid)]
        return late

    def close(self) -> None:
        """Kill every process that is left."""
        with self._lock:
            self._closed = True
            ours = [*self.workers, *self.producers, *self._temporary]
        sessions = {*self._orphaned, *(member.pid for member in ours)}
        for _ in range(2):  # the second round finds a child that was just being started
            for pid in [pid for leader in sessions for pid in session_processes(leader)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for member in ours:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(10.0)


def _end(members: Sequence[Member], timeout: float) -> list[Member]:
    for member in members:
        member.signal_all(signal.SIGCONT)
        member.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout
    late = []
    for member in members:
        try:
            member.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late.append(member)
            member.signal_all(signal.SIGKILL)
    return late
