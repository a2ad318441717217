"""Sample jobs, leases and ends for the store tests, and short forms of the verbs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from penstock.core.job import TERMINAL, AttemptError, Job, NewJob, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import Rate
from penstock.core.outcomes import QueuePosition
from penstock.core.relations import BatchTerms, Partition
from penstock.stores.contract import (
    DUE_LATER,
    EnqueueStatus,
    JobOrder,
    SearchPage,
    Settled,
    Settlement,
    Share,
    Store,
)

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SOON = 60.0  # seconds within which a wait must have been woken, also on a busy machine
LEASE = 15 * SECOND
KEEP = HOUR

#: How the folder of a test is called, and so its keys.
TEST_FOLDER = "penstock-"

#: `open_store(namespace="")`: another store object over the data of this test.
OpenStore = Callable[..., Store]

_numbers = itertools.count(1)


def key_prefix(home: Path) -> str:
    """The keys of one test on a server that all share: named as its folder, or a folder in that one."""
    test = next(n for n, part in enumerate(home.parts) if part.startswith(TEST_FOLDER))
    return ".".join(home.parts[test:])


def new(id: str | None = None, **facts: Any) -> NewJob:
    """A job of the task `t` in the queue `default`, with an id of its own."""
    facts.setdefault("task", "t")
    return NewJob(id=f"job-{next(_numbers)}" if id is None else id, **facts)


def some(n: int, **facts: Any) -> list[NewJob]:
    """Several, in one order: that of their ids too."""
    return [new(**facts) for _ in range(n)]


def token() -> str:
    """A token that nobody has used."""
    return f"token-{next(_numbers)}"


def error(attempt: int = 1, message: str = "no luck") -> AttemptError:
    return AttemptError(attempt, 1_700_000_000_000, "ValueError", message, "Traceback …")


# how attempts end

COMPLETED = Transition(State.COMPLETED, keep=KEEP)
CANCELLED = Transition(State.CANCELLED, keep=KEEP, reason="not wanted")
DEAD = Transition(State.DEAD, keep=KEEP, error=error(), reason="ValueError: no luck")
AGAIN = Transition(State.AVAILABLE, error=error())
PARKED = Transition(State.PARKED, place=QueuePosition.OWN, charge=False, reason="nobody knows it")
RELEASED = Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False)
PUT_BACK = Transition(State.AVAILABLE, place=QueuePosition.OWN, charge=False)


def retryable(delay: int = MINUTE) -> Transition:
    return Transition(State.RETRYABLE, delay=delay, error=error())


def snoozed(delay: int = MINUTE) -> Transition:
    return Transition(State.SCHEDULED, delay=delay, charge=False)


def suspended(delay: int = HOUR) -> Transition:
    return Transition(State.SUSPENDED, delay=delay, charge=False)


#: Every way in which an attempt can end, by name.
ENDINGS = {
    "completed": COMPLETED,
    "cancelled": CANCELLED,
    "dead": DEAD,
    "again at once": AGAIN,
    "retryable": retryable(),
    "snoozed": snoozed(),
    "suspended": suspended(),
    "parked": PARKED,
    "released": RELEASED,
    "put back": PUT_BACK,
    "removed": Transition(State.COMPLETED),
}


#: A batch that starts only when it is full.
ALONE = BatchTerms("g", 1_000)


# the verbs, with their usual arguments


async def add(store: Store, *jobs: NewJob) -> None:
    """Enqueue jobs that must all be new."""
    answers = await store.enqueue(jobs)
    assert [a.status for a in answers] == [EnqueueStatus.NEW] * len(jobs)
    assert [a.id for a in answers] == [job.id for job in jobs]


async def take(
    store: Store, n: int = 1, queue: str = "default", *, worker: str = "w1", lease: int = LEASE
) -> list[Job]:
    """Fetch up to n jobs of one queue."""
    share = Share(queue, quota=n, cap=n)
    return (await store.fetch([share], limit=n, lease=lease, worker=worker, token=token())).jobs


async def take_one(store: Store, queue: str = "default", *, worker: str = "w1") -> Job:
    (job,) = await take(store, 1, queue, worker=worker)
    return job


async def end(store: Store, job: Job, transition: Transition = COMPLETED, **facts: Any) -> None:
    """Settle one job, which must apply."""
    assert await store.settle([Settlement(job.lease, transition, **facts)]) == [Settled.APPLIED]


async def running(store: Store, **facts: Any) -> Job:
    """A new job that is leased to w1, in a queue where no other is ready before it."""
    spec = new(**facts)
    await add(store, spec)
    job = await take_one(store, spec.queue)
    assert job.id == spec.id
    return job


async def in_state(store: Store, state: State, **facts: Any) -> Job:
    """A new job that stands in this state."""
    if state is State.SCHEDULED:
        spec = new(delay=MINUTE, **facts)
        await add(store, spec)
    elif state is State.AVAILABLE:
        spec = new(**facts)
        await add(store, spec)
    elif state is State.WAITING:
        spec = await waiting(store, **facts)
    elif state is State.COLLECTING:
        spec = new(batch_terms=facts.pop("batch_terms", ALONE), **facts)
        await add(store, spec)
    else:
        job = await running(store, **facts)
        spec = job.spec
        way = {
            State.RETRYABLE: retryable(),
            State.PARKED: PARKED,
            State.COMPLETED: COMPLETED,
            State.CANCELLED: CANCELLED,
            State.DEAD: DEAD,
            State.SUSPENDED: suspended(),
        }.get(state)
        if way is not None:
            await end(store, job, way)
    found = await the(store, spec)
    assert found.state is state
    return found


async def waiting(store: Store, **facts: Any) -> NewJob:
    """A new job that waits in a partition of its own, for the instant at which its rate lets the next one
    start: the one that had started before is gone."""
    partition = Partition(f"partition-{next(_numbers)}", rate=Rate(1, 366 * DAY))
    first = await running(store, **{**facts, "id": None, "partition": partition})
    await end(store, first, Transition(State.COMPLETED))
    spec = new(**facts, partition=partition)
    await add(store, spec)
    return spec


async def one_of_each(store: Store, queue: str = "default") -> dict[State, Job]:
    """A job in every state, the available one last: else it would be leased in the making of others."""
    states = sorted(State, key=lambda state: state is State.AVAILABLE)
    return {state: await in_state(store, state, queue=queue) for state in states}


def member(id: str | None = None, *, key: str = "", size: int = 100, **facts: Any) -> NewJob:
    """A job that is collected: until there are `size`, the first is `wait` old, or `grace` is over."""
    terms = BatchTerms(key, size, facts.pop("wait", DAY), facts.pop("grace", None))
    facts.setdefault("payload", b"1")
    return new(id, batch_terms=terms, **facts)


async def the(store: Store, job: Job | NewJob | Ref) -> Job:
    """The job as it is now; it must be there."""
    (found,) = await store.get([job if isinstance(job, Ref) else job.ref])
    assert found is not None
    return found


async def gone(store: Store, job: Job | NewJob | Ref) -> bool:
    return await store.get([job if isinstance(job, Ref) else job.ref]) == [None]


async def counts(store: Store, queue: str = "default") -> dict[State, int]:
    """How many jobs of each state this queue says it has."""
    return {q.name: q.counts for q in await store.queues()}.get(queue, {})


async def everything(store: Store, **asked: Any) -> AsyncIterator[Job]:
    """All jobs of a listing, page by page."""
    after: str | None = None
    while True:
        page = await store.list_jobs(after=after, limit=100, **asked)
        for job in page.jobs:
            yield job
        if (after := page.next) is None:
            return


async def all_jobs(store: Store, **asked: Any) -> list[Job]:
    return [job async for job in everything(store, **asked)]


async def next_jobs(
    store: Store,
    queue: str = "default",
    *,
    state: State = State.AVAILABLE,
    after: str | None = None,
    limit: int = 50,
) -> SearchPage:
    """A page of the jobs of a queue in one state, in the order in which they leave it."""
    order = JobOrder.ENDED if state in TERMINAL else JobOrder.DUE if state in DUE_LATER else JobOrder.READY
    return await store.list_jobs(
        queue=queue, state=state, order=order, descending=False, after=after, limit=limit
    )


def ids(jobs: list[Job] | list[NewJob]) -> list[str]:
    return [job.id for job in jobs]


async def asleep(task: asyncio.Task[Any]) -> None:
    """Let the task run until it waits for something that is yet to happen."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)  # a store may have a thread of its own to start
    assert not task.done()
