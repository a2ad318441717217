"""Faults of jobs: tasks that raise, hang, block or crash their process, and acts of an operator.

The jobs of an act are whatever a search finds at that moment, so many acts race with the workers that run
them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from penstock.core.errors import PenstockError
from penstock.core.job import QUEUED, TERMINAL, Job, Ref, State
from penstock.inspector import Inspector
from penstock.inspector.bulk_acts import BulkActs
from penstock.inspector.job_acts import JobAct, JobActs
from penstock.stores.contract import JobFilter, Store
from penstock.verify.faults.chaos_run import NO_PROCESS, ChaosRun, NoVictim
from penstock.verify.run_folder import QUEUES

# ── faults of tasks ──────────────────────────────────────────────────────────────────────────────


TASKS = "penstock.verify.workload.tasks"
#: A task that no version of the code has.
UNKNOWN_TASK = "verify.unknown"
#: Fault types that the task itself records in the ledger when it runs.
REPORTED_BY_TASKS = {"raise", "hang", "block-loop", "eat-memory", "os-exit", "segfault"}


class TaskFaults:
    """Each method enqueues one job that causes a fault."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run

    def raise_(self, *_: float) -> None:
        self._task("raise", "raises", max_attempts=2)

    def hang(self, which: float, *_: float) -> None:
        name = ("hangs", "hangs_in_thread", "hangs_in_process")[int(which * 3)]
        self._task("hang", name, max_attempts=1, timeout="1s")

    def block_loop(self, how: float, *_: float) -> None:
        seconds = round(0.5 + 2 * how, 3)
        self._task("block-loop", "blocks_the_loop", b'{"seconds": %.3f}' % seconds, max_attempts=2)

    def eat_memory(self, *_: float) -> None:
        self._task("eat-memory", "eats_memory", max_attempts=1)

    def os_exit(self, which: float, *_: float) -> None:
        self._task("os-exit", "exits" if which < 0.4 else "exits_in_process", max_attempts=2)

    def segfault(self, *_: float) -> None:
        self._task("segfault", "segfaults", max_attempts=2)

    def unknown_task(self, *_: float) -> None:
        if self._run.enqueue(b"{}", UNKNOWN_TASK, queue="main"):
            self._run.ledger.fault("task", NO_PROCESS, "unknown-task")
            self._run.record("unknown-task", UNKNOWN_TASK)

    def poison_payload(self, which: float, *_: float) -> None:
        payload = (b"\xff\xfe\x00", b'{"n": "many"}', b"[" * 5_000)[int(which * 3)]
        if self._run.enqueue(payload, f"{TASKS}.quick", queue="main", max_attempts=3):
            self._run.ledger.fault("task", NO_PROCESS, "poison-payload")
            self._run.record("poison-payload", "quick", f"{payload[:16]!r}")

    def _task(self, kind: str, name: str, payload: bytes = b"{}", **options: Any) -> None:
        """Enqueue the job; its task records the fault in the ledger when it runs."""
        if self._run.enqueue(payload, f"{TASKS}.{name}", queue="harm", retry="200ms", **options):
            self._run.record(kind, name)


# ── acts of an operator ──────────────────────────────────────────────────────────────────────────


T = TypeVar("T")

#: Name by which the audit log and bulk acts know the run.
_BY = "verify"
#: The most jobs of one act, and among how many they are drawn.
_MOST, _AMONG = 8, 100
#: The most jobs of a bulk act, and the longest delay of a reschedule (ms).
_MOST_IN_BULK, _LONGEST_DELAY = 200, 2_000
#: The share of bulk acts that are aborted, and the longest time until then (s).
_ABORTED, _UNTIL_ABORT = 0.3, 0.5
#: Tasks whose jobs depend on each other by signals: without a job, or with one more, others wait for ever.
_SIGNALLED = tuple(
    f"penstock.verify.workload.flow_tasks.{name}" for name in ("sends", "waits", "waits_for_items", "races")
)
#: The tasks of bulk acts: no signals, no batches, and no jobs that another job waits for.
_IN_BULK = (
    *("quick", "in_thread", "in_process", "fails_at_first", "slow", "snoozes"),
    *("deduplicated", "in_order", "two_at_once", "once"),
)
#: Tasks of one argument `n`, whose jobs are edited.
_EDITED = ("quick", "in_thread")
_LATER = (State.SCHEDULED, State.RETRYABLE)


class ActOnJobs(NamedTuple):
    """An act on jobs, and the states in which its jobs are looked for.

    - `calls_off`: a job may not run any more. Not done to a job for which another one waits without end.
    - `copies`: there is one job more.
    """

    act: JobAct
    states: tuple[State, ...]
    calls_off: bool = False
    copies: bool = False


#: The acts on jobs by the name of their fault.
ACTS: dict[str, ActOnJobs] = {
    "act-retry": ActOnJobs(JobAct.RETRY, (*sorted(TERMINAL), *sorted(QUEUED))),
    "act-run-now": ActOnJobs(JobAct.RUN_NOW, _LATER),
    "act-reschedule": ActOnJobs(JobAct.RESCHEDULE, (*_LATER, State.AVAILABLE)),
    "act-cancel": ActOnJobs(JobAct.CANCEL, (*_LATER, State.AVAILABLE, State.RUNNING, State.SUSPENDED), True),
    "act-delete": ActOnJobs(JobAct.DELETE, tuple(State), True),
    "act-duplicate": ActOnJobs(JobAct.DUPLICATE, tuple(State), copies=True),
    "act-discard": ActOnJobs(JobAct.DISCARD, (*_LATER, State.AVAILABLE, State.SUSPENDED), calls_off=True),
    "act-complete": ActOnJobs(JobAct.COMPLETE, (*_LATER, State.AVAILABLE, State.DEAD), calls_off=True),
    "act-move": ActOnJobs(JobAct.MOVE, (*_LATER, State.AVAILABLE)),
}


class ActFaults:
    """Each method does one act; its parameters are random numbers (0 to 1) for the jobs and details."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run

    def by_kind(self) -> dict[str, Callable[[float, float, float], None]]:
        """The methods by the names of their faults."""
        acts = {kind: partial(self.act, kind) for kind in ACTS}
        return {**acts, "act-edit": self.edit, "act-bulk": self.bulk}

    def act(self, kind: str, *values: float) -> None:
        """Do an act to some jobs, as `penstock jobs` does."""
        rng, what = _dice(values), ACTS[kind]
        queue, state = rng.choice(QUEUES), rng.choice(what.states)
        delay, to = rng.randrange(_LONGEST_DELAY), rng.choice(QUEUES)

        async def act(store: Store) -> list[Ref]:
            jobs = await _search_jobs(store, queue, state)
            refs = [job.ref for job in jobs if await _is_allowed(store, job, what)]
            chosen = rng.sample(refs, min(len(refs), rng.randint(1, _MOST)))
            if chosen:
                self._run.ledger.fault("act", NO_PROCESS, kind)
                await JobActs(store, delay=delay, to=to).apply(what.act, chosen)
            return chosen

        done = self._do(act)
        self._run.record(kind, f"{len(done)} {state.value} job(s)", ", ".join(ref.id for ref in done))

    def edit(self, *values: float) -> None:
        """Give one job other arguments that fit its task."""
        rng = _dice(values)
        task, n = f"{TASKS}.{rng.choice(_EDITED)}", rng.randrange(1_000, 2_000)

        async def edit(store: Store) -> str:
            filter = JobFilter(states=(*_LATER, State.AVAILABLE), task=task)
            page = await store.search(filter, limit=_AMONG)
            if not page.hits:
                return ""
            job = rng.choice(page.jobs)
            self._run.ledger.fault("act", NO_PROCESS, "act-edit")
            await Inspector(store).edit(job.ref, lambda job: replace(job.spec, payload=b'{"n": %d}' % n))
            return job.id

        self._run.record("act-edit", task.rpartition(".")[2], self._do(edit))

    def bulk(self, *values: float) -> None:
        """Start a bulk act, which the workers run, and abort some of them."""
        rng = _dice(values)
        what = rng.choice(list(ACTS.values()))
        task, state = f"{TASKS}.{rng.choice(_IN_BULK)}", rng.choice(what.states)
        filter = JobFilter(states=(state,), task=task)
        limit, delay, to = rng.randint(1, _MOST_IN_BULK), rng.randrange(_LONGEST_DELAY), rng.choice(QUEUES)

        async def start(store: Store) -> str:
            self._run.ledger.fault("act", NO_PROCESS, "act-bulk")
            acts = BulkActs(store)
            bulk = await acts.start(what.act, filter, by=_BY, delay=delay, to=to, limit=limit)
            return bulk.id

        id = self._do(start)
        self._run.record("act-bulk", f"{what.act.value} of {state.value} {task.rpartition('.')[2]}", id)
        if rng.random() < _ABORTED:
            self._run.wait(rng.uniform(0.0, _UNTIL_ABORT))
            self._do(lambda store: BulkActs(store).abort(id, by=_BY))

    def _do(self, act: Callable[[Store], Awaitable[T]]) -> T:
        """Raises NoVictim if there was nothing to act on, or the store was away: it is tried again later."""

        async def do() -> T:
            return await act(self._run.app.store)

        try:
            with self._run.using:
                done = asyncio.run(do())
        except PenstockError as error:
            raise NoVictim from error
        if not done:
            raise NoVictim
        return done


def _dice(values: tuple[float, ...]) -> random.Random:
    return random.Random(repr(values))  # noqa: S311 (chaos by lot, no secret)


async def _search_jobs(store: Store, queue: str, state: State) -> list[Job]:
    """Jobs in this state, of this queue if it has any."""
    page = await store.search(JobFilter(queues=(queue,), states=(state,)), limit=_AMONG)
    if not page.hits:
        page = await store.search(JobFilter(states=(state,)), limit=_AMONG)
    return page.jobs


async def _is_allowed(store: Store, job: Job, what: ActOnJobs) -> bool:
    """Whether the ledger can account for this act: what becomes of others that depend on the job is known."""
    if (what.calls_off or what.copies) and job.task in _SIGNALLED:
        return False
    if not what.calls_off:
        return True
    if job.members or job.batch is not None:
        return False  # the members of a batch that no worker has seen yet are not in the ledger
    if job.spec.flow is None:
        return True
    if what.act is JobAct.COMPLETE:
        return False  # its successors would run without its result
    (flow,) = await store.get_flows([Ref(job.spec.flow.queue, job.spec.flow.id)])
    return flow is not None and not flow.spec.wakes  # a gather fails the job that waits for it
