"""The checker finds a store in which an act of an operator loses a job, doubles one, or leaves one there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from msgspec.structs import replace

from penstock import App, Worker
from penstock.core.job import NewJob, Ref, State
from penstock.inspector import Inspector
from penstock.inspector.bulk_acts import BulkActs
from penstock.inspector.job_acts import JobAct, JobActs, every_state
from penstock.stores.contract import Enqueued, JobEdit, JobFilter, JobMove, Store
from penstock.verify.faults.job_faults import ACTS
from penstock.verify.ledger import Ledger, Verdict, acheck
from tests.doubles import Double
from tests.verify.ledger.honest_ledger import promises

_JOBS = 4


class _Mutant(Double):
    """The store itself; a mutant has another verb."""


class _LosesRetried(_Mutant):
    """A retried job is removed."""

    async def retry(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        before = await self._store.retry(refs, **options)
        await self._store.delete(refs[:1])
        return before


class _CopiesTwice(_Mutant):
    """A job that is enqueued by an act is stored twice."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if jobs[0].headers.get("copied"):
            await self._store.enqueue([replace(jobs[0], id=f"{jobs[0].id}-2")])
        return await self._store.enqueue(jobs)


class _KeepsDeleted(_Mutant):
    """A delete says that it has removed what it leaves there."""

    async def delete(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        return [job and job.state for job in await self._store.get(refs)]


class _ForgetsRescheduled(_Mutant):
    """A rescheduled job is cancelled, and nobody has asked for it."""

    async def reschedule(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        before = await self._store.reschedule(refs, **options)
        await self._store.delete(refs[:1])
        return before


class _MovesTwice(_Mutant):
    """A moved job stays in its old queue."""

    async def move_jobs(self, moves: Sequence[JobMove]) -> list[Enqueued | None]:
        answers = await self._store.move_jobs(moves)
        await self._store.enqueue([moves[0].seen.spec])
        return answers


class _ForgetsEdits(_Mutant):
    """An edit changes nothing."""

    async def edit_jobs(self, edits: Sequence[JobEdit]) -> list[bool]:
        return [True for _ in edits]


class _DiscardsNothing(_Mutant):
    """A discarded job runs."""

    async def discard(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        return [job and job.state for job in await self._store.get(refs)]


class _CompletesNothing(_Mutant):
    """A completed job is dead."""

    async def complete(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        before = [job and job.state for job in await self._store.get(refs)]
        await self._store.discard(refs)
        return before


async def _checked(folder: Path, mutant: type[_Mutant], act: JobAct, *, bulk: bool) -> Verdict:
    """The verdict on jobs that are acted on before a worker runs them, and again after that."""
    app = App(f"memory://{uuid4().hex}")
    honest = app.store
    app.use_store(cast(Store, mutant(honest)))
    ledger = Ledger(folder)
    ledger.watch(app)

    @app.task(retention="1h")
    async def work(n: int) -> int:
        return n

    headers = {"copied": "yes"}
    calls = [work.using(headers=headers, delay=60).job(n) for n in range(_JOBS)]
    refs = [handle.ref for handle in await app.aenqueue_many(calls)]
    enqueued = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == enqueued:  # a bulk act leaves out what is enqueued as it begins
        await asyncio.sleep(0)
    for _ in range(2):
        if bulk:
            jobs = JobFilter(queues=("default",), states=every_state(act))
            started = await BulkActs(app.store).start(act, jobs, by="test", to="other")
            while await BulkActs(app.store).step(started.id, "test") is not None:
                pass
        else:
            await JobActs(app.store, to="other").apply(act, refs)
        await JobActs(app.store).apply(JobAct.RUN_NOW, refs)
        await Worker(app, queues=["default", "other"], burst=True).run()
    verdict = await acheck(folder, honest, finished=False)
    ledger.close()
    return verdict


@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
@pytest.mark.parametrize("act", [one.act for one in ACTS.values()])
def test_a_store_that_does_what_it_is_told_passes(tmp_path: Path, act: JobAct, bulk: bool) -> None:
    asyncio.run(_checked(tmp_path, _Mutant, act, bulk=bulk)).require()


@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
@pytest.mark.parametrize(
    ("mutant", "act", "promise"),
    [
        (_LosesRetried, JobAct.RETRY, "lost"),
        (_CopiesTwice, JobAct.DUPLICATE, "counters"),
        (_KeepsDeleted, JobAct.DELETE, "acts"),
        (_ForgetsRescheduled, JobAct.RESCHEDULE, "lost"),
        (_MovesTwice, JobAct.MOVE, "acts"),
        (_DiscardsNothing, JobAct.DISCARD, "one end"),
        (_CompletesNothing, JobAct.COMPLETE, "one end"),
    ],
)
def test_an_act_that_loses_or_doubles_a_job_is_found(
    tmp_path: Path, mutant: type[_Mutant], act: JobAct, promise: str, bulk: bool
) -> None:
    verdict = asyncio.run(_checked(tmp_path, mutant, act, bulk=bulk))
    assert promise in promises(verdict.findings), verdict.report()


@pytest.mark.parametrize(("mutant", "found"), [(_Mutant, set()), (_ForgetsEdits, {"acts"})])
async def test_an_edit_that_changes_nothing_is_found(
    tmp_path: Path, mutant: type[_Mutant], found: set[str]
) -> None:
    app = App(f"memory://{uuid4().hex}")
    honest = app.store
    app.use_store(cast(Store, mutant(honest)))
    ledger = Ledger(tmp_path)
    ledger.watch(app)
    await app.store.enqueue([NewJob("a", "t")])
    await Inspector(app.store).edit(Ref("default", "a"), lambda job: replace(job.spec, payload=b'{"n": 2}'))
    assert promises((await acheck(tmp_path, honest, finished=False)).findings) == found
    ledger.close()
