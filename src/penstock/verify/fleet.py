"""The workers and producers of a run: started, replaced when they have died, ended."""

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

from penstock.verify.processes import children, family
from penstock.verify.run_folder import ROLE, VERSION, RunFolder, VerifyFailed

__all__ = ["Fleet", "Member"]

#: Who ends sooner than this after its start (s), and has not begun to work, so often in a row, will not live.
_BRIEF, _OFTEN = 3.0, 6


@dataclass
class Member:
    """A process of the run with all that it started: `role` is supervised, lone or producer."""

    role: str
    number: int
    command: tuple[str, ...]
    log: Path
    version: str = "1"
    process: subprocess.Popen[bytes] = field(init=False)
    since: float = 0.0
    told: int = 0  # how long its log was at its start (bytes)
    brief: int = 0  # how often in a row it ended at once, had not begun to work, and nobody had harmed it
    due: float | None = None  # when it is to be started again (monotonic, s), once it has ended
    harmed: bool = False

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
    def serves(self) -> bool:
        """Whether it has begun its work since its start, by its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.told)
            return b" serves " in log.read()
        return False

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """It and all that it started."""
        for pid in family(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Fleet:
    """The processes of a run. `keep`, from any thread, starts those anew that should be there and are not."""

    def __init__(self, place: RunFolder, *, seed: int, workers: int, rate: float, producers: int = 2) -> None:
        self._place = place
        self._seed = seed
        self._lock = threading.RLock()
        self._closed = False
        self._started = 0
        self.workers: list[Member] = []
        self.producers: list[Member] = []
        self._guests: list[Member] = []
        self._orphaned: list[int] = []  # sessions of the dead in which somebody still drains
        self._lives = 0  # of producers: each draws its load from a seed of its own
        self._rate = rate / producers
        self._wanted = (workers, producers)

    @property
    def all(self) -> list[Member]:
        """Whoever is there at this moment, guests too."""
        with self._lock:
            return [*self.workers, *self.producers, *self._guests]

    def start(self) -> None:
        """The workers, every other with a supervisor and two processes; then who gives them work."""
        workers, producers = self._wanted
        with self._lock:
            self.workers = [
                self._worker("lone" if i % 2 else "supervised", i + 1, "1", 0) for i in range(workers)
            ]
            self.producers = [self._producer(i + 1) for i in range(producers)]

    def guest(self, role: str, *, version: str = "1", ahead: int = 0) -> Member:
        """One more worker, which nobody replaces; `ahead`: by how many seconds its clock is wrong."""
        with self._lock:  # all of it: who closes the fleet must know of whoever has been started
            member = self._worker(role, 0, version, ahead)
            self._guests.append(member)
            return member

    def employ(self, role: str, *, version: str) -> None:
        """One more worker, which is replaced when it dies, as those from the start are."""
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

    def _producer(self, number: int) -> Member:
        return self._begin("producer", number, self._produce(), "1")

    def _produce(self) -> list[str]:
        self._lives += 1
        return ["-m", "penstock.verify.workload.producer", f"{self._seed}/{self._lives}", str(self._rate)]

    def _begin(self, role: str, number: int, command: Sequence[str], version: str) -> Member:
        self._started += 1
        log = self._place.logs / f"{self._started:03}-{role}.log"
        member = Member(role, number or self._started, (sys.executable, *command), log, version)
        self._launch(member)
        return member

    def _launch(self, member: Member) -> None:
        with self._lock:
            if self._closed:
                raise VerifyFailed("the run is over: nothing is started any more")
            with member.log.open("ab") as log:
                member.told = log.tell()
                member.process = subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
                    member.command,
                    env=self._place.env(**{ROLE: member.role, VERSION: member.version}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C at the terminal is for us, and pids can be told apart
                )
            member.since, member.due, member.harmed = time.monotonic(), None, False

    def wait_ready(self, timeout: float) -> None:
        """Until all workers serve; raises VerifyFailed."""
        ends = time.monotonic() + timeout
        while waiting := [member for member in self.workers if not member.serves]:
            dead = [member for member in waiting if not member.alive]
            if dead or time.monotonic() > ends:
                what = "ended at once" if dead else f"did not begin to work within {timeout:.0f} s"
                names = ", ".join(member.name for member in dead or waiting)
                raise VerifyFailed(f"{names} {what}: {self._place.log_tail()}")
            time.sleep(0.05)

    def keep(self) -> None:
        """Replace who has died, a second later each time that one ends at once and by itself: what it could
        not bear, as a full disk, may pass. Raises VerifyFailed for one that goes on like that."""
        with self._lock:
            if self._closed:
                return
            self._orphaned = [pid for pid in self._orphaned if family(pid)]
            self._guests = [one for one in self._guests if one.alive or family(one.pid)]
            for member in (*self.workers, *self.producers):
                if not member.alive and self._is_due(member):
                    self._replace(member)

    def _is_due(self, member: Member) -> bool:
        now = time.monotonic()
        if member.due is None:
            at_once = now - member.since < _BRIEF and not (member.harmed or member.serves)
            member.brief = member.brief + 1 if at_once else 0
            if member.brief >= _OFTEN:
                raise VerifyFailed(f"{member.name} does not stay alive: {self._place.log_tail()}")
            member.due = now + max(0, member.brief - 1)
        return now >= member.due

    def _replace(self, member: Member) -> None:
        self._orphaned.append(member.pid)  # the children of a killed supervisor drain by themselves
        if member.role == "producer":
            member.command = (sys.executable, *self._produce())
        self._launch(member)

    @contextlib.contextmanager
    def standstill(self) -> Iterator[Callable[[], list[int]]]:
        """Start nobody meanwhile. Yields what finds all living processes, also those of dead parents."""
        with self._lock:
            leaders = [*(member.pid for member in self.all), *self._orphaned]
            yield lambda: [pid for leader in leaders for pid in family(leader)]

    def end_producers(self, timeout: float = 20.0) -> None:
        """No more jobs."""
        with self._lock:
            leaving, self.producers = self.producers, []
            self._orphaned += [member.pid for member in leaving]
        _end(leaving, timeout)

    def end_workers(self, timeout: float = 40.0) -> list[Member]:
        """All workers drain and end; those come back that had to be killed."""
        with self._lock:
            leaving, self.workers, self._guests = [*self.workers, *self._guests], [], []
            self._orphaned += [member.pid for member in leaving]
        late = _end(leaving, timeout)
        with self._lock:  # whose number it is later on is none of our business
            self._orphaned = [pid for pid in self._orphaned if family(pid)]
        return late

    def close(self) -> None:
        """Nobody is left."""
        with self._lock:
            self._closed = True
            ours = [*self.workers, *self.producers, *self._guests]
        sessions = {*self._orphaned, *(member.pid for member in ours)}
        for _ in range(2):  # who was just being started is seen the second time
            for pid in [pid for leader in sessions for pid in family(leader)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for member in ours:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(10.0)


def _end(members: Sequence[Member], timeout: float) -> list[Member]:
    for member in members:
        member.signal_all(signal.SIGCONT)
        member.signal(signal.SIGTERM)
    ends = time.monotonic() + timeout
    late = []
    for member in members:
        try:
            member.process.wait(max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            late.append(member)
            member.signal_all(signal.SIGKILL)
    return late
