"""How many queued no-ops a second real workers get through, from the first execution to the last."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.measures.figure import Figure, Group, Lab, Sample
from benchmarks.rig import Rig, new_runner
from penstock.ids import mint
from penstock.lifecycle import Returned, decide
from penstock.store import Settlement, Share

__all__ = ["GROUP"]

_BATCH = 1_000


def take(lab: Lab) -> Iterator[Sample]:
    processes = (1, 2) if lab.setup.on_disk else (1,)
    for task in ("noop", "noop_thread"):
        for n in processes:
            with lab.rig() as rig:
                rig.fill(lab.sizes.jobs, task)
                with rig.workers(n):
                    rig.wait(lab.sizes.jobs)
                    yield f"{task}_{n}", rig.counters.rate()
    with lab.rig() as rig:
        rig.fill(lab.sizes.jobs)
        rig.app.close()
        if lab.setup.store == "sqlite":
            yield "raw_drain", _raw(lab, rig)
        with new_runner() as runner:
            yield "verb_drain", runner.run(_verbs(rig, lab.sizes.jobs))


async def _verbs(rig: Rig, jobs: int) -> float:
    """The store's own verbs, a thousand jobs a call, as a worker calls them that has nothing to run."""
    store, done = rig.app.store, 0
    share = [Share("default", _BATCH, _BATCH)]
    await store.queues()  # opens it
    started = time.perf_counter()
    while done < jobs:
        fetched = await store.fetch(share, limit=_BATCH, lease=15_000, worker="bench", token=mint())
        await store.settle(
            [Settlement(job.lease, decide(job, Returned(), fetched.now)) for job in fetched.jobs]
        )
        done += len(fetched.jobs)
    return jobs / (time.perf_counter() - started)


def _raw(lab: Lab, rig: Rig) -> float:
    from benchmarks.measures.raw import RawTable, stored_rows

    table = RawTable(rig.disk / "raw.db", lab.setup.durability)
    try:
        table.insert(stored_rows(rig.file), batch=lab.sizes.chunk)
        return table.drain()
    finally:
        table.close()


_RAW = ("raw_drain", "verb_drain")

GROUP = Group(
    "drain",
    "Drain of queued no-ops, `penstock worker` with its default of 20 slots (jobs/s)",
    (
        Figure("noop_1", "async tasks, 1 process", "/s", _RAW),
        Figure("noop_2", "async tasks, 2 processes", "/s", _RAW),
        Figure("noop_thread_1", "thread tasks, 1 process", "/s", _RAW),
        Figure("noop_thread_2", "thread tasks, 2 processes", "/s", _RAW),
        Figure("verb_drain", "the store's verbs alone: fetch 1000, settle 1000", "/s", ("raw_drain",)),
        Figure("raw_drain", "raw: lease 1000 and delete 1000 a commit", "/s"),
    ),
    take,
)
