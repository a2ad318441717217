"""Searches, pages and other reads among a million jobs: fill a store once, then measure it.

    python -m benchmarks.search fill    sqlite:////tmp/million.db
    python -m benchmarks.search measure sqlite:////tmp/million.db

The store gets 100 000 dead jobs with 1 000 kinds of errors, then 890 000 available, 5 000 scheduled and
5 000 retained ones in five queues, workers with running jobs, and statistics of 20 tasks for all periods that
are kept. Every line of the measurement is one kind of page, search or other read: the times of a page, or of
a search the time to its first progress, of the whole, and of its longest step.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from statistics import median, quantiles

from benchmarks.ended import dead as died
from benchmarks.ended import end_all
from benchmarks.reads import fill_audit, fill_statistics, lease_some, measure_reads
from penstock.core.ids import mint
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.inspector import Inspector, JobSearch
from penstock.stores.connect import connect
from penstock.stores.contract import JobFilter, JobOrder, Store

__all__ = ["main"]

JOBS, DEAD, LATER, ENDED, KINDS = 1_000_000, 100_000, 5_000, 5_000, 1_000
_BATCH = 2_000
QUEUES = ("mail", "reports", "billing", "sync", "default")
_DAY = 86_400_000
_PAGES = 40
_TASKS = 20


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("act", choices=["fill", "measure"])
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=JOBS, help="number of jobs (default 1 000 000)")
    given = parser.parse_args(arguments)
    store = connect(given.url)
    try:
        asyncio.run(_fill(store, given.url, given.jobs / JOBS) if given.act == "fill" else _measure(store))
    finally:
        store.close()


# ── fill ─────────────────────────────────────────────────────────────────────────────────────────


async def _fill(store: Store, url: str, part: float) -> None:
    began = time.perf_counter()
    dead, later, ended = int(DEAD * part), int(LATER * part), int(ENDED * part)
    for n in range(0, dead + ended, _BATCH):
        await store.enqueue([_job(k, retention=_DAY) for k in range(n, min(n + _BATCH, dead + ended))])
    # the first ones die, each of one of the kinds of errors
    completed = Transition(State.COMPLETED, keep=_DAY)
    await end_all(store, QUEUES, lambda n, _: died(n % KINDS) if n < dead else completed)
    for n in range(dead + ended, int(JOBS * part) - later, _BATCH):
        await store.enqueue([_job(k) for k in range(n, min(n + _BATCH, int(JOBS * part) - later))])
    for n in range(0, later, _BATCH):
        await store.enqueue([_job(k, delay=60_000 + 7 * k) for k in range(n, min(n + _BATCH, later))])
    await lease_some(store, QUEUES)
    await fill_audit(store, max(100, int(2_000 * part)))
    await fill_statistics(url, QUEUES, _TASKS, max(20, int(KINDS * part)), every=int(min(20, 1 / part)))
    print(f"{int(JOBS * part):,} jobs in {time.perf_counter() - began:.0f} s")


def _job(n: int, **options: int) -> NewJob:
    options_of_it = f'{{"lang":"en","mail":"user{n % 9973}@example.org","note":"{"x" * 60}"}}'
    payload = f'[[{n},"order-{n:07d}",{options_of_it}],{{}}]'
    return NewJob(mint(), f"tasks.t{n % _TASKS}", payload.encode(), QUEUES[n % 5], **options)


# ── measure ──────────────────────────────────────────────────────────────────────────────────────


async def _measure(store: Store) -> None:
    inspector = Inspector(store)
    counts = [n for queue in await store.queues() for n in queue.counts.values()]
    print(f"{store.url}: {sum(counts):,} jobs", flush=True)
    dead = JobFilter(states=(State.DEAD,))
    await _pages("all, newest first", inspector, JobSearch())
    await _pages("all, oldest first", inspector, JobSearch(descending=False))
    await _pages("one queue", inspector, JobSearch(JobFilter(queues=("mail",))))
    await _pages("dead, newest first", inspector, JobSearch(dead))
    await _pages("dead, oldest first", inspector, JobSearch(dead, descending=False))
    await _pages("dead by end", inspector, JobSearch(dead, JobOrder.ENDED))
    await _pages("scheduled", inspector, JobSearch(JobFilter(states=(State.SCHEDULED,))))
    await _pages("by due time", inspector, JobSearch(order=JobOrder.DUE, descending=False))
    await _pages("one task", inspector, JobSearch(JobFilter(task="tasks.t7")))
    await _search("a task that is not there", inspector, JobSearch(JobFilter(task="tasks.none")))
    await _search("text: a number", inspector, JobSearch(JobFilter(text="order-0043210")))
    await _search(
        "text: in an error", inspector, JobSearch(JobFilter(text="host 777 gave", states=(State.DEAD,)))
    )
    await _search("text: not there", inspector, JobSearch(JobFilter(text="nobody has this")))
    await _search("a header", inspector, JobSearch(JobFilter(headers={"tenant": "none"})))
    await measure_reads(store, QUEUES)


async def _pages(name: str, inspector: Inspector, search: JobSearch) -> None:
    """Pages of 50 jobs: the first one, and those after it, from random places on."""
    times: list[float] = []
    steps, found, after = 0, 0, None
    for n in range(_PAGES):
        began = time.perf_counter()
        async with aclosing(inspector.search(search, after=after, limit=50)) as progress:
            async for step in progress:
                steps, found, after = steps + 1, found + len(step.jobs), step.next
        times.append((time.perf_counter() - began) * 1000)
        for _ in range(random.randrange(5) if after and n % 2 else 0):
            page = await inspector._store.search(
                search.filter, order=search.order, descending=search.descending, after=after, limit=500
            )
            after = page.next
    p95 = quantiles(times, n=20)[-1]
    print(
        f"{name:26} page: p50 {median(times):6.1f} ms, p95 {p95:6.1f} ms, first {times[0]:6.1f} ms; "
        f"{found / _PAGES:.0f} jobs in {steps / _PAGES:.1f} steps",
        flush=True,
    )


async def _search(name: str, inspector: Inspector, search: JobSearch) -> None:
    began = last = time.perf_counter()
    first: float | None = None
    longest, steps, found = 0.0, 0, 0
    async for step in inspector.search(search):
        now = time.perf_counter()
        first = now - began if first is None else first
        longest, last = max(longest, now - last), now
        steps, found = steps + 1, found + len(step.jobs)
    whole = time.perf_counter() - began
    print(
        f"{name:26} search: first progress {(first or whole) * 1000:6.1f} ms, all in {whole:5.1f} s; "
        f"{found:,} jobs in {steps:,} steps, longest {longest * 1000:.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
