"""The pen: writes facts so that a SIGKILL in the next instruction loses none of them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.app.attempt import Attempt
from penstock.core.job import Job, Ref
from penstock.verify.ledger.facts import Asked, Ended, Fact, Fault, Healed, Opened, Started, Told, encode
from penstock.verify.ledger.recording.recorded_store import watched

__all__ = ["Ledger"]


class Ledger:
    """A directory with one file per process, each line a fact. Works in threads and across forks.

    `Ledger(directory).watch(app)` records all that an app's producers and workers do. Whoever works
    without an app, kills a process or runs in a task's own process says so by hand.
    """

    def __init__(self, directory: str | Path, *, note: str = "") -> None:
        self.directory = Path(directory)
        self._note = note
        self._fd = -1
        self._pid = 0

    def watch(self, app: App) -> App:
        """Record every enqueue, lease, attempt, settlement and cancellation that goes through this app.

        Call it in every process that produces or works, before the app is used. Attempts are recorded by
        a middleware of its own, so register yours before or after as they shall stand outside or inside.
        """
        app.use_store(watched(app.store, self))
        app.around_attempt(self._around)
        return app

    # ── by hand ──────────────────────────────────────────────────────────────────────────────────

    def started(self, job: Job | Attempt) -> None:
        """The function of this attempt begins, says the task itself (`ledger.started(current_job())`)."""
        self.write(self._started(job, inside=True))

    def ended(self, job: Job | Attempt, outcome: str = "returned") -> None:
        """The function of this attempt is done, says the task itself."""
        self.write(self._ended(job, outcome, inside=True))

    def kill(
        self, pid: int, cause: str = "SIGKILL", *, number: int = signal.SIGKILL, kind: str = "kill"
    ) -> None:
        """Write down that this process is killed, and do it."""
        self.fault(kind, pid, cause)
        os.kill(pid, number)

    def stop(self, pid: int, *, kind: str = "stop") -> None:
        """SIGSTOP this process, and write it down: its leases may run out."""
        self.fault(kind, pid, "SIGSTOP")
        os.kill(pid, signal.SIGSTOP)

    def resume(self, pid: int, *, kind: str = "stop") -> None:
        """SIGCONT this process, and write that down."""
        os.kill(pid, signal.SIGCONT)
        self.healed(kind, pid)

    def fault(
        self, kind: str, target: int = 0, cause: str = "", *, seconds: float = 0.0, queues: Iterable[str] = ()
    ) -> None:
        """Harm was or is about to be done: the attempts that it may have cost are excused.

        `target` is a process (a worker, its supervisor or a task's own), 0 for everybody's trouble, as a
        store that was away. It lasts for so many `seconds`; who does not know yet says `healed` when it is
        over. What hits the jobs of some queues alone names these `queues`.
        """
        self.write(Fault(*_now(), kind, target, cause, seconds, tuple(queues)))

    def healed(self, kind: str, target: int = 0) -> None:
        """The last harm of this kind that was done to this target is over."""
        self.write(Healed(*_now(), kind, target))

    def asked(self, verb: str, ref: Ref, *, due: int = 0) -> None:
        """Somebody is about to cancel, retry, reschedule or delete this job by other means than the app."""
        self.write(Asked(*_now(), ref.queue, ref.id, verb, due))

    def told(self, verb: str, ref: Ref, answer: str | None) -> None:
        """What the store answered to that."""
        self.write(Told(*_now(), ref.queue, ref.id, verb, answer or ""))

    # ── the pen ──────────────────────────────────────────────────────────────────────────────────

    def write(self, *facts: Fact) -> None:
        """Append these facts, all in one system call: they are in the kernel when this returns."""
        self.write_all(facts)

    def write_all(self, facts: Iterable[Fact]) -> None:
        """The same for a batch."""
        text = b"".join([encode(fact) + b"\n" for fact in facts])
        if not text:
            return
        fd = self._file()
        wrote = os.write(fd, text)
        while wrote < len(text):  # a disk that fills up; a torn line is left out by the reader
            wrote += os.write(fd, text[wrote:])

    def _file(self) -> int:
        if self._pid != os.getpid():  # the first fact of this process, perhaps of a fork
            self._open()
        return self._fd

    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        pid = os.getpid()
        path = self.directory / f"{pid}-{os.urandom(4).hex()}.jsonl"
        # no lock, which a fork could leave taken: two threads that both open write two files
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pid = pid
        self.write(Opened(*_now(), os.getppid(), socket.gethostname(), self._note))

    # ── the middleware ───────────────────────────────────────────────────────────────────────────

    async def _around(self, job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        self.write(self._started(job, inside=False))
        try:
            value = await call()
        except BaseException as error:  # boundary: whatever ends the attempt is written down, and goes on
            self.write(self._ended(job, _name_of(error), inside=False))
            raise
        self.write(self._ended(job, "returned", inside=False))
        return value

    @staticmethod
    def _started(job: Job | Attempt, *, inside: bool) -> Started:
        job = job.job if isinstance(job, Attempt) else job
        token, worker = job.token or "", job.worker or ""
        return Started(*_now(), job.queue, job.id, token, worker, job.attempt, inside)

    @staticmethod
    def _ended(job: Job | Attempt, outcome: str, *, inside: bool) -> Ended:
        job = job.job if isinstance(job, Attempt) else job
        return Ended(*_now(), job.queue, job.id, job.token or "", outcome, inside)


def _now() -> tuple[int, int, int]:
    return time.time_ns() // 1_000_000, time.monotonic_ns(), os.getpid()


def _name_of(error: BaseException) -> str:
    return type(error).__name__ if isinstance(error, Exception) else "interrupted"
