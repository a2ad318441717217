"""Writes facts to disk so that a SIGKILL in the next instruction loses none of them."""

from __future__ import annotations

import functools
import inspect
import os
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from penstock.app.app import App
from penstock.app.attempt import Attempt, current_job
from penstock.core.job import Job, Ref
from penstock.verify.effects import StepEffect, StepEffects
from penstock.verify.ledger.facts import (
    Ended,
    Fact,
    Fault,
    Healed,
    Opened,
    OperationAnswered,
    OperationAsked,
    Stalled,
    Started,
    StepAnswered,
    StepRan,
    encode,
    timestamp,
)
from penstock.verify.ledger.recorded_store import recorded_store
from penstock.worker.process_identity import worker_pid

P = ParamSpec("P")
R = TypeVar("R")


class Ledger:
    """A directory with one file per process and one fact per line. Works with threads and across forks.

    `Ledger(directory).watch(app)` records all acts of an app's producers and workers. Acts without an app,
    kills of processes, and runs in a task's own process are recorded by explicit calls.
    """

    def __init__(self, directory: str | Path, *, note: str = "") -> None:
        self._fd = -1
        self._pid = 0
        self.directory = Path(directory)
        self._note = note
        #: Names of the tasks whose functions record their attempts themselves (see `recorded`).
        self.self_recorded: set[str] = set()

    def watch(self, app: App, *, attempts: bool = True) -> App:
        """Record every enqueue, lease, attempt, settlement and cancellation that goes through this app.

        Call it in every process that produces or works, before the app is used. A middleware records the
        attempts: register your own middleware before it to wrap it, or after it to be wrapped. Process tasks
        with middleware never wait in a child behind another call. With `attempts=False` no middleware is
        registered: call `watch_attempts` once all tasks are defined.
        """
        app.use_store(recorded_store(app.store, self))
        if attempts:
            app.around_attempt(self._around)
        return app

    def watch_attempts(self, app: App) -> None:
        """Record attempts of the tasks defined so far: by a middleware, or by the function itself if it is
        `recorded`."""
        for task in {task.name: task for task in app.tasks.values()}.values():  # once, despite its aliases
            if getattr(task.function, _RECORDED, False):
                self.self_recorded.add(task.name)
            else:
                app.around_attempt(task=task)(self._around)

    def recorded(self, function: Callable[P, R]) -> Callable[P, R]:
        """A function of a task that records its starts and ends itself, in the process that runs it.

        Use it below `@app.task(run_in="process")`, and `watch(app, attempts=False)`. Such a task has no
        middleware, so its calls may lie ready in a child like those of any app.
        """

        @functools.wraps(function)
        def record(*args: P.args, **kwargs: P.kwargs) -> R:
            job = current_job()
            self.started(job)
            try:
                value = function(*args, **kwargs)
            except BaseException as error:  # boundary: every end of the attempt is recorded and raised again
                self.ended(job, _name_of(error))
                raise
            self.ended(job)
            return value

        setattr(record, _RECORDED, True)
        return record

    # ── explicit calls ───────────────────────────────────────────────────────────────────────────

    def started(self, job: Job | Attempt) -> None:
        """Record, from inside a task, that its function begins: `ledger.started(current_job())`."""
        self.write(self._started(job, inside=True))

    def ended(self, job: Job | Attempt, outcome: str = "returned") -> None:
        """Record, from inside a task, that its function has ended."""
        self.write(self._ended(job, outcome, inside=True))

    def kill(
        self, pid: int, cause: str = "SIGKILL", *, number: int = signal.SIGKILL, kind: str = "kill"
    ) -> None:
        """Record a kill of this process, then kill it."""
        self.fault(kind, pid, cause)
        os.kill(pid, number)

    def stop(self, pid: int, *, kind: str = "stop") -> None:
        """Record a stop of this process, whose leases may expire, then send SIGSTOP."""
        self.fault(kind, pid, "SIGSTOP")
        os.kill(pid, signal.SIGSTOP)

    def resume(self, pid: int, *, kind: str = "stop") -> None:
        """Send SIGCONT to this process, and record that its stop is over."""
        os.kill(pid, signal.SIGCONT)
        self.healed(kind, pid)

    def fault(
        self, kind: str, target: int = 0, cause: str = "", *, seconds: float = 0.0, queues: Iterable[str] = ()
    ) -> None:
        """Record a fault, which excuses the attempts that it may have cost.

        - `target`: a process (a worker, its supervisor, or a task's own process); 0: all processes, e.g. if
          the store was away.
        - `seconds`: the duration. If it is unknown, call `healed` when the fault is over.
        - `queues`: the only queues that are hit (default: all).
        """
        self.write(Fault(*timestamp(), kind, target, cause, seconds, tuple(queues)))

    def healed(self, kind: str, target: int = 0) -> None:
        """Record that the last fault of this kind on this target is over."""
        self.write(Healed(*timestamp(), kind, target))

    def stalled(self, seconds: float) -> None:
        """Record that this process did not run for so many seconds until now: its slowness proves nothing."""
        self.write(Stalled(*timestamp(), seconds))

    def operation_asked(self, verb: str, ref: Ref, *, due: int = 0) -> None:
        """Record a cancel, retry, reschedule or delete of this job that does not go through the app."""
        self.write(OperationAsked(*timestamp(), ref.queue, ref.id, verb, due))

    def operation_answered(self, verb: str, ref: Ref, answer: str | None) -> None:
        """Record the store's answer to `operation_asked`."""
        self.write(OperationAnswered(*timestamp(), ref.queue, ref.id, verb, answer or ""))

    # ── writing ────────────────────────────────────────────────────────────────────────────────────

    def write(self, *facts: Fact) -> None:
        """Append these facts in one system call; the kernel has them when this returns."""
        self.write_all(facts)

    def write_all(self, facts: Iterable[Fact]) -> None:
        """As `write`, for an iterable."""
        text = b"".join([encode(fact) + b"\n" for fact in facts])
        if not text:
            return
        fd = self._file()
        wrote = os.write(fd, text)
        while wrote < len(text):  # a disk that fills up; the reader skips a torn line
            wrote += os.write(fd, text[wrote:])

    def close(self) -> None:
        """Close this process's file; a later fact opens another. No thread may be writing."""
        fd, pid = self._fd, self._pid
        self._fd, self._pid = -1, 0
        if fd >= 0 and pid == os.getpid():  # in a fork, the number may be another file's
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _file(self) -> int:
        if self._pid != os.getpid():  # the first fact of this process, or of a fork
            self._open()
        return self._fd

    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        pid = os.getpid()
        path = self.directory / f"{pid}-{os.urandom(4).hex()}.jsonl"
        # no lock, because a fork could leave it taken: two threads that open at once write two files
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pid = pid
        self.write(Opened(*timestamp(), worker_pid(), socket.gethostname(), self._note))

    # ── the middleware ───────────────────────────────────────────────────────────────────────────

    async def _around(self, job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        self.write(self._started(job, inside=False))
        try:
            value = await call()
        except BaseException as error:  # boundary: every end of the attempt is recorded and raised again
            self.write(self._ended(job, _name_of(error), inside=False))
            raise
        self.write(self._ended(job, "returned", inside=False))
        return value

    @staticmethod
    def _started(job: Job | Attempt, *, inside: bool) -> Started:
        job = job.job if isinstance(job, Attempt) else job
        token, worker = job.token or "", job.worker or ""
        return Started(*timestamp(), job.queue, job.id, token, worker, job.attempt, inside)

    @staticmethod
    def _ended(job: Job | Attempt, outcome: str, *, inside: bool) -> Ended:
        job = job.job if isinstance(job, Attempt) else job
        return Ended(*timestamp(), job.queue, job.id, job.token or "", outcome, inside)


#: Marks a function that `Ledger.recorded` has made.
_RECORDED = "_penstock_recorded"


def _name_of(error: BaseException) -> str:
    return type(error).__name__ if isinstance(error, Exception) else "interrupted"


# ── functions of durable steps ───────────────────────────────────────────────────────────────────


#: Has the effect of a step, and returns its mark.
Happen = Callable[[], str]

#: The arguments of an effect are recorded up to this length.
_MOST = 200


def recorded_step(ledger: Ledger, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a step that records its begin and its end in a ledger.

    - `step`: the name of the step with its scope, as in `a/charge#2`; for an undo `undo!` stands before it.
    - `function`: its first argument has the step's effect when it is called.
    """

    def happen(given: tuple[Any, ...]) -> str:
        job, mark = current_job().job, secrets.token_hex(4)
        text = msgspec.json.encode(given).decode()[:_MOST]
        effect = StepEffect(job.token or "", time.monotonic_ns(), os.getpid(), mark, text)
        StepEffects(ledger.directory).happen(job.ref, step, effect)
        return mark

    def ran(*, over: bool, error: str = "") -> StepRan:
        queue, id, token = _place()
        return StepRan(*timestamp(), queue, id, token, step, over, error)

    @contextmanager
    def running() -> Iterator[None]:
        ledger.write(ran(over=False))
        try:
            yield
        except BaseException as error:  # boundary: every end of the function is recorded and raised again
            ledger.write(ran(over=True, error=type(error).__name__))
            raise
        ledger.write(ran(over=True))

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def await_it(*args: Any) -> Any:
            with running():
                return await function(functools.partial(happen, args), *args)

        return await_it

    @functools.wraps(function)
    def call_it(*args: Any) -> Any:
        with running():
            return function(functools.partial(happen, args), *args)

    return call_it


def record_answer(ledger: Ledger, step: str, mark: str) -> None:
    """Record that the code of a flow got the answer of a step with this mark."""
    ledger.write(StepAnswered(*timestamp(), *_place(), step, mark))


def _place() -> tuple[str, str, str]:
    job = current_job().job
    return job.queue, job.id, job.token or ""
