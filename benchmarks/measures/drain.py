"""Drain: queued no-ops per second from the first to the last, and CPU time per job of worker and server."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig, new_runner
from penstock.core.ids import mint
from penstock.core.lifecycle import decide
from penstock.core.outcomes import Returned
from penstock.stores.contract import Settlement, Share

__all__ = ["GROUP"]

_BATCH = 1_000


def take(lab: Lab) -> Iterator[Sample]:
    processes = (1, 2) if lab.setup.shared else (1,)
    for task in ("noop", "noop_thread"):
        for n in processes:
            with lab.rig() as rig:
                rig.fill(lab.sizes.jobs, task)
                for name, value in _drained(rig, lab.sizes.jobs, n):
                    yield f"{task}_{n}{name}", value
    with lab.rig() as rig:
        rig.fill(lab.sizes.jobs)
        rig.app.close()
        yield from _raw(lab, rig)
        with new_runner() as runner:
            yield "verb_drain", runner.run(_verbs(rig, lab.sizes.jobs))


def _drained(rig: Rig, jobs: int, processes: int) -> Iterator[Sample]:
    """The rate, and the CPU time from the first executions to the end, without the start-up."""
    with rig.workers(processes) as running:
        rig.wait(1)
        done, cpu, server = rig.counters.total(), running.cpu(), _server_cpu(rig)
        rig.wait(jobs)
        per_job = 1e6 / max(1, jobs - done)
        if running.pids:
            yield "_cpu", (running.cpu() - cpu) * per_job
        if rig.server is not None:
            yield "_server_cpu", (_server_cpu(rig) - server) * per_job
        yield "", rig.counters.rate()


def _server_cpu(rig: Rig) -> float:
    return 0.0 if rig.server is None else rig.server.cpu()


async def _verbs(rig: Rig, jobs: int) -> float:
    """The rate of the store's verbs, with a thousand jobs per call, without running the jobs."""
    store, done = rig.app.store, 0
    share = [Share("default", _BATCH, _BATCH)]
    await store.queues()  # opens the store
    started = time.perf_counter()
    while done < jobs:
        fetched = await store.fetch(share, limit=_BATCH, lease=15_000, worker="bench", token=mint())
        await store.settle(
            [Settlement(job.lease, decide(job, Returned(), fetched.now)) for job in fetched.jobs]
        )
        done += len(fetched.jobs)
    return jobs / (time.perf_counter() - started)


def _raw(lab: Lab, rig: Rig) -> Iterator[Sample]:
    if lab.setup.store == "sqlite":
        yield "raw_drain", _raw_sqlite(lab, rig)
    elif rig.server is not None:
        from benchmarks.measures.raw_redis import RawQueue, stored_records

        jobs, queue = stored_records(rig.server), RawQueue(rig.server)
        for name, batch in (("raw_drain", lab.sizes.batch), ("raw_drain_1000", _BATCH)):
            queue.put_many(jobs, batch=lab.sizes.batch, chunk=lab.sizes.chunk)
            yield name, queue.drain(batch)
        queue.close()


def _raw_sqlite(lab: Lab, rig: Rig) -> float:
    from benchmarks.measures.raw import RawTable, stored_rows

    table = RawTable(rig.disk / "raw.db", lab.setup.durability)
    try:
        table.insert(stored_rows(rig.file), batch=lab.sizes.chunk)
        return table.drain()
    finally:
        table.close()


_RAW = ("raw_drain", "verb_drain")

GROUP = FigureGroup(
    "drain",
    "Drain of queued no-ops, `penstock worker` with its default of 20 slots (jobs/s)",
    (
        Figure("noop_1", "async tasks, 1 process", "/s", _RAW),
        Figure("noop_2", "async tasks, 2 processes", "/s", _RAW),
        Figure("noop_thread_1", "thread tasks, 1 process", "/s", _RAW),
        Figure("noop_thread_2", "thread tasks, 2 processes", "/s", _RAW),
        *(
            Figure(
                f"{task}_{n}_{whose}cpu", f"{kind} tasks, {n} process{es}: of {who}", "µs CPU/job", digits=1
            )
            for task, kind in (("noop", "async"), ("noop_thread", "thread"))
            for n, es in ((1, ""), (2, "es"))
            for whose, who in (("", "the worker, supervisor included"), ("server_", "Redis"))
        ),
        Figure("verb_drain", "the store's verbs alone: fetch 1000, settle 1000", "/s", ("raw_drain",)),
        Figure("raw_drain", "raw: lease and delete 1000 a commit; Redis: take 100, finish 100", "/s"),
        Figure("raw_drain_1000", "raw, Redis: take 1000, finish 1000", "/s"),
    ),
    take,
    delayed=True,
)
