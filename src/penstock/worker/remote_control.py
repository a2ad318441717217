"""What makes a running worker report, stop or be replaced: commands of operators, and its own limits."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, Protocol

from penstock.core.formats import format_ms
from penstock.core.stacks import frames_text, task_frames, thread_frames
from penstock.core.text import number
from penstock.maintenance.service import Service
from penstock.stores.contract import Capability, WorkerInfo
from penstock.stores.worker_commands import CommandChannel, CommandReply, WorkerAct, WorkerCommand
from penstock.worker.executor.runners import coroutine_of
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs
from penstock.worker.pools.child_group import resident
from penstock.worker.setup import WorkerSetup

_log = logging.getLogger("penstock.worker")

# ── commands of operators ────────────────────────────────────────────────────────────────────────

#: The store wakes the service (SETTINGS), but only one of several workers with the same store object. So each
#: looks this often (s) whether there are new commands, by one cheap read.
_SAFETY = 5.0
_SAYS = {
    WorkerAct.QUIET: "fetches no more jobs",
    WorkerAct.DRAIN: "drains, then ends",
    WorkerAct.STOP: "ends at once",
    WorkerAct.RESTART: "drains when its replacement is ready, then ends",
}


class Controlled(Protocol):
    """The worker that obeys."""

    def info(self) -> WorkerInfo: ...
    def quiet(self) -> None: ...
    def stop(self, *, now: bool = False) -> None: ...


class Obedience(NamedTuple):
    """What a worker answers to a command, and what it does after the answer is stored; None: nothing more."""

    reply: CommandReply
    act: Callable[[], None] | None = None


class RemoteControl(Service):
    """Obeys each command for a worker once. Woken by changes of settings, of which a command is one.

    `stacks` makes the report of what the worker does.
    """

    name = "command reader"
    needs = Capability.DOCUMENTS

    def __init__(self, setup: WorkerSetup, worker: Controlled, stacks: Callable[[], str]) -> None:
        super().__init__()
        self._channel = CommandChannel(setup.app.store)
        self._id = setup.id
        self._worker = worker
        self._ask_supervisor = setup.supervision.ask
        # another process could not run jobs that are in the memory of this one
        self._replaceable = not setup.keeps_jobs_in_memory
        self._stacks = stacks
        self._obeyed: deque[str] = deque(maxlen=1_000)
        self._version = 0

    async def tick(self) -> float:
        version = await self._channel.version()
        if version == self._version:
            return _SAFETY
        for sent, command in await self._channel.commands(self._id):
            if sent.id in self._obeyed:  # its answer could not be stored
                continue
            self._obeyed.append(sent.id)
            reply, act = self.obey(command)
            _log.warning("worker %s: command %r from %s", self._id, command.act.value, command.by or "?")
            try:
                await self._channel.answer(sent, reply)
            finally:
                if act is not None:
                    act()
        self._version = version
        return _SAFETY

    def obey(self, command: WorkerCommand) -> Obedience:
        """The answer to a command, and the act that follows it."""
        act, ask = command.act, self._ask_supervisor
        if act is WorkerAct.STACKS:
            return Obedience(CommandReply(True, self._stacks()))
        state = self._worker.info().state
        if act is WorkerAct.RESTART and (why := self._why_not_replaced(state)):
            return Obedience(CommandReply(False, why))
        if act is WorkerAct.DRAIN and state == "draining":
            return Obedience(CommandReply(True, "drains already"))
        if ask is not None:
            others = "" if act is WorkerAct.RESTART else ", with all processes of its supervisor"
            return Obedience(CommandReply(True, _SAYS[act] + others), lambda: ask(act))
        if act is WorkerAct.RESTART:
            why = "it has no supervisor that could start a replacement; `penstock worker` starts one"
            return Obedience(CommandReply(False, why))
        return Obedience(CommandReply(True, _SAYS[act]), self._own(act))

    def _why_not_replaced(self, state: str) -> str | None:
        if not self._replaceable:
            return "its jobs are in its memory: a replacement would not have them"
        return None if state == "running" else f"it is {state}: drain it, and start another worker"

    def _own(self, act: WorkerAct) -> Callable[[], None]:
        if act is WorkerAct.QUIET:
            return self._worker.quiet
        return lambda: self._worker.stop(now=act is WorkerAct.STOP)


# ── limits of a worker process ───────────────────────────────────────────────────────────────────

_LOOK_EVERY = 1.0
#: The replacement may fail to start: ask for another one after this long (s).
_ASK_AGAIN = 60.0


class Recycler(Service):
    """Asks for a replacement of this process once it has run many jobs, or has grown large.

    A worker is never replaced before a job has ended, so that a limit below what the app needs does not make
    workers replace each other for ever. `replace` asks the supervisor, which starts a new process and then
    lets this one drain.
    """

    name = "recycler"

    def __init__(self, setup: WorkerSetup, leased_jobs: LeasedJobs, replace: Callable[[], None]) -> None:
        super().__init__()
        self._worker = setup.id
        self._leased_jobs = leased_jobs
        self._jobs = setup.config.max_jobs_per_worker  # 0: no limit
        self._memory = setup.config.max_memory_per_worker  # bytes; 0: no limit
        self._replace = replace

    async def tick(self) -> float:
        if (why := self._reached()) is None:
            return _LOOK_EVERY
        _log.info("worker %s: %s; it is replaced", self._worker, why)
        self._replace()
        return _ASK_AGAIN

    def _reached(self) -> str | None:
        """The limit that is reached, as text."""
        ended = self._leased_jobs.added - len(self._leased_jobs)
        if self._jobs and ended >= self._jobs:
            return f"{ended:,} jobs have ended (max_jobs_per_worker={self._jobs:,})"
        if ended and self._memory and (size := resident(os.getpid())) > self._memory:
            mega = number(size / 1e6), number(self._memory / 1e6)
            return f"{mega[0]} MB are resident (max_memory_per_worker={mega[1]}MB)"
        return None


# ── the report of what it does ───────────────────────────────────────────────────────────────────


def stack_report(leased_jobs: LeasedJobs, thread_of: Callable[[LeasedJob], int | None]) -> str:
    """The stacks of running jobs, then of the other threads and tasks of this process.

    `thread_of` returns the ident of the thread that runs a job, or None. The stack of a process task is
    missing, because it is in a child process.
    """
    text, threads = io.StringIO(), thread_frames()
    runners: set[asyncio.Task[None]] = set()
    now = time.monotonic()
    for leased in list(leased_jobs):
        if not leased.started or leased.over:
            continue
        age = format_ms(round((now - leased.started) * 1000))
        text.write(f"job {leased.job.queue}/{leased.job.id}, task {leased.job.task}, running for {age}\n")
        text.write(frames_text(_frames(leased, thread_of, threads, runners)) or "  (no Python stack here)\n")
        text.write("\n")
    for name, frames in threads.values():
        text.write(f"thread {name}\n{frames_text(frames)}\n")
    tasks = sorted(asyncio.all_tasks() - runners, key=asyncio.Task.get_name)
    for (name, stack), n in Counter((one.get_name(), frames_text(task_frames(one))) for one in tasks).items():
        text.write(f"{f'{n} tasks' if n > 1 else 'task'} {name}\n{stack}\n")
    return text.getvalue()


def _frames(
    leased: LeasedJob,
    thread_of: Callable[[LeasedJob], int | None],
    threads: dict[int, tuple[str, list[FrameType]]],
    runners: set[asyncio.Task[None]],
) -> list[FrameType]:
    """The frames of a running job. Its thread or task is not listed again."""
    ident = thread_of(leased)
    if ident is not None:
        return threads.pop(ident, ("", []))[1]
    if leased.runner is not None:
        runners.add(leased.runner)
        return task_frames(leased.runner, coroutine_of)
    return []
