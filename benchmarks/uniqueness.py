"""Unique keys under load: `python -m benchmarks.uniqueness --store sqlite` (or redis).

Fifty producers, threads of several processes, enqueue the same thousand keys a hundred times each while no
worker runs. There must be exactly one job for each key, and every handle of a key must be that job's.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import describe
from benchmarks.server import Server
from penstock import App

_QUEUE = "uniqueness"
#: Calls in one `enqueue_many`; the others are enqueued one by one.
_BATCH = 100


@click.command()
@click.option("--store", type=click.Choice(["sqlite", "redis"]), default="sqlite", show_default=True)
@click.option("--producers", default=50, show_default=True)
@click.option("--processes", default=5, show_default=True)
@click.option("--keys", default=1_000, show_default=True)
@click.option("--times", default=100, show_default=True, help="How often each producer enqueues each key.")
def main(store: str, producers: int, processes: int, keys: int, times: int) -> None:
    """Run the benchmark. Exit code 1: a key has two jobs or none, or a handle of another job."""
    print(describe())
    with _place(store) as url:
        began = time.monotonic()
        told = _produce(url, producers, processes, keys, times)
        took = time.monotonic() - began
        faults = list(_faults(url, told, keys, producers * times))
    calls = producers * times * keys
    print(f"{store}: {producers} producers in {processes} processes, {calls:,} calls in {took:.0f} s")
    print(
        "\n".join(f"FAULT: {fault}" for fault in faults)
        or f"exactly {keys:,} jobs, all handles equal per key"
    )
    sys.exit(1 if faults else 0)


@contextmanager
def _place(store: str) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-unique-"))
    server = Server(folder) if store == "redis" else None
    try:
        yield f"sqlite:///{folder / 'jobs.db'}" if server is None else server.url
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder)


def _app(url: str) -> tuple[App, Any]:
    app = App(url)

    @app.task(queue=_QUEUE, name="once", unique=True)
    def once(key: int) -> None: ...

    return app, once


Told = dict[tuple[int, str], Counter[bool]]


def _produce(url: str, producers: int, processes: int, keys: int, times: int) -> list[Told]:
    spawn = multiprocessing.get_context("spawn")
    shares = [producers // processes + (n < producers % processes) for n in range(processes)]
    with spawn.Pool(processes) as pool:
        return pool.starmap(_process, [(url, n, share, keys, times) for n, share in enumerate(shares)])


def _process(url: str, number: int, threads: int, keys: int, times: int) -> Told:
    """The number of new (False) and existing (True) handles for each key and job."""
    app, once = _app(url)
    told: Told = defaultdict(Counter)
    lock = threading.Lock()

    def produce(thread: int) -> None:
        order = list(range(keys))
        for turn in range(times):
            random.Random(f"{number} {thread} {turn}").shuffle(order)
            for start in range(0, keys, _BATCH):
                some = order[start : start + _BATCH]
                if start == 0 and turn % 10 == 0:  # now and then one by one
                    handles = [once.enqueue(key) for key in some]
                else:
                    handles = app.enqueue_many([once.job(key) for key in some])
                with lock:
                    for key, handle in zip(some, handles, strict=True):
                        told[key, handle.id][handle.existing] += 1

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(produce, range(threads)))
    app.close()
    return dict(told)


def _faults(url: str, told: list[Told], keys: int, calls: int) -> Iterator[str]:
    all_told: Told = defaultdict(Counter)
    for one in told:
        for which, counted in one.items():
            all_told[which].update(counted)
    jobs: dict[int, set[str]] = defaultdict(set)
    for (key, id), counted in all_told.items():
        jobs[key].add(id)
        if counted[False] != 1 or counted.total() != calls:
            yield f"key {key}: {counted[False]} new and {counted[True]} existing handles of job {id}"
    several = [key for key, ids in jobs.items() if len(ids) != 1]
    if several or len(jobs) != keys:
        yield f"{len(jobs)} keys have jobs, of which {len(several)} have more than one: {several[:10]}"
    app, _ = _app(url)
    stored = sum(sum(queue.counts.values()) for queue in app.store.sync.queues())
    app.close()
    if stored != keys:
        yield f"{stored} jobs are stored for {keys} keys"


if __name__ == "__main__":
    main()
