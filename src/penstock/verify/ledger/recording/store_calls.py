"""Converts store calls and their answers into facts."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterator, Sequence

from penstock.core.job import Job, Lease, NewJob, Ref
from penstock.core.lifecycle import Transition, first_state
from penstock.core.unique_rules import expiry_of
from penstock.stores.contract import Enqueued, Settlement, Tick, TickResult, TickStatus
from penstock.stores.contract import Settled as Answer
from penstock.verify.ledger import facts
from penstock.verify.ledger.facts import Fact

__all__ = [
    "Now",
    "answered",
    "leased",
    "offered",
    "settled",
    "settling",
    "start_of",
    "ticked",
    "ticking",
    "timestamp",
]

#: Wall clock (ms), monotonic clock (ns), process.
Now = tuple[int, int, int]


def timestamp() -> Now:
    return time.time_ns() // 1_000_000, time.monotonic_ns(), os.getpid()


def offered(
    job: NewJob, self_recorded: Container[str], *, follows: bool = False, entry: str = ""
) -> facts.Offered:
    """The fact of this enqueue. `due` is a lower bound: the store reads its clock later.

    `self_recorded`: the tasks that record their attempts themselves.
    """
    at, mono, pid = timestamp()
    _, due = first_state(job, at)
    unique, partition = job.unique, job.partition
    period = None if unique is None else unique.period
    return facts.Offered(
        at,
        mono,
        pid,
        job.queue,
        job.id,
        task=job.task,
        due=due,
        delayed=due > at,
        max_attempts=job.max_attempts,
        at_most_once=job.at_most_once,
        expires=expiry_of(job, at),
        retention=job.retention,
        unique=None if unique is None else unique.key,
        unique_until=None if period is None else at + period,
        follows=follows,
        unique_states=3 if unique is None else unique.states,
        partition=None if partition is None else partition.key,
        partition_most=1 if partition is None else partition.most,
        ordered=partition is not None and partition.ordered,
        collected=job.batch_terms is not None,
        entry=entry,
        timeout=job.timeout or 0,
        self_recorded=job.task in self_recorded,
        flow="" if job.flow is None else job.flow.id,
    )


def answered(now: Now, job: NewJob, answer: Enqueued) -> facts.Answered:
    holder = "" if answer.id == job.id else answer.id
    return facts.Answered(*now, job.queue, job.id, answer.status.value, holder)


def start_of(job: NewJob, at: int) -> int:
    """When the job is due if it is enqueued at `at`."""
    return first_state(job, at)[1]


def leased(now: Now, job: Job, by: str, sent: int, lease: int, offered: int = 0) -> facts.Leased:
    token, worker, place = job.token or "", job.worker or "", job.spec.flow
    return facts.Leased(
        *now,
        job.queue,
        job.id,
        token,
        worker,
        job.attempt,
        by,
        sent,
        lease,
        members=job.members,
        offered=offered,
        flow=None if place is None else (place.queue, place.id, place.node),
    )


def settling(now: Now, lease: Lease | Ref, to: Transition) -> facts.Settling:
    return facts.Settling(
        *now,
        lease.queue,
        lease.id,
        token=_token(lease),
        state=to.state.value,
        delay=to.delay,
        charge=to.charge,
        lost=to.lost,
        keep=to.keep,
        error="" if to.error is None else to.error.kind,
    )


def settled(settlements: Sequence[Settlement], answers: Sequence[Answer] | None) -> Iterator[Fact]:
    """The answers to these settlements; `answers` is None if the reply was lost."""
    now = timestamp()
    for i, one in enumerate(settlements):
        lease = one.lease
        answer = "unknown" if answers is None else answers[i].value
        yield facts.SettleAnswered(*now, lease.queue, lease.id, _token(lease), answer)
        if answer == "applied":
            yield from (facts.Answered(*now, job.queue, job.id, "follows") for job in one.then)


def ticking(now: Now, tick: Tick, self_recorded: Container[str]) -> Iterator[Fact]:
    ids = tuple(job.id for job in tick.jobs)
    yield facts.Ticking(*now, tick.ref.queue, tick.ref.id, tick.revision, tick.watermark, tick.to, ids)
    yield from (offered(job, self_recorded, entry=tick.ref.id) for job in tick.jobs)


def ticked(now: Now, tick: Tick, answer: TickResult | None) -> Iterator[Fact]:
    """The answer to a tick; None if the reply was lost.

    A store client may lose a reply, repeat the call, and then be told that the entry has already advanced. So
    STALE does not prove that this tick was not applied.
    """
    said = "unknown" if answer is None else answer.status.value
    new = () if answer is None else answer.enqueued
    otherwise = (
        "unknown" if answer is None or answer.status in (TickStatus.STALE, TickStatus.UNKNOWN) else "skipped"
    )
    yield facts.TickAnswered(*now, tick.ref.queue, tick.ref.id, tick.revision, tick.watermark, said, new)
    for job in tick.jobs:
        yield facts.Answered(*now, job.queue, job.id, "new" if job.id in new else otherwise)


def _token(lease: Lease | Ref) -> str:
    return lease.token if isinstance(lease, Lease) else ""
