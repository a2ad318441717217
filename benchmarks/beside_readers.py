"""Duration of an enqueue on SQLite beside readers: `python -m benchmarks.beside_readers --threads`.

Readers fetch jobs and count queues all the time, from separate processes or from threads of the writer's
process. The output has the median and the 99th percentile of a write, alone and beside readers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.core.job import NewJob
from penstock.stores.sqlite import SqliteStore

_STORED = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=4, help="Number of readers (default 4).")
    parser.add_argument("--threads", action="store_true", help="Readers are threads of the writer's process.")
    parser.add_argument("--seconds", type=float, default=5.0, help="Seconds of each measurement (default 5).")
    parser.add_argument("--durability", default="full", choices=["full", "normal"], help="As in the URL.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder, "jobs.db")
        store = SqliteStore(path, durability=given.durability)
        store.sync.enqueue([NewJob(f"stored-{n}", "t") for n in range(_STORED)])
        _say("alone", _writes(store, given.seconds))
        spawn = multiprocessing.get_context("spawn")
        over: Any = threading.Event() if given.threads else spawn.Event()
        make: Callable[..., Any] = threading.Thread if given.threads else spawn.Process
        what = store if given.threads else path
        readers = [make(target=_read, args=(what, over)) for _ in range(given.readers)]
        for reader in readers:
            reader.start()
        time.sleep(1.0)
        kind = "threads" if given.threads else "processes"
        _say(f"beside {given.readers} {kind} that read", _writes(store, given.seconds))
        over.set()
        for reader in readers:
            reader.join()
        store.close()


def _read(what: SqliteStore | Path, over: Any) -> None:
    store = SqliteStore(what) if isinstance(what, Path) else what
    refs = [NewJob(f"stored-{n}", "t").ref for n in range(20)]
    while not over.is_set():
        store.sync.get(refs)
        store.sync.queues()


def _writes(store: SqliteStore, seconds: float) -> list[float]:
    """The duration of each write (ms)."""
    took, ends, n = [], time.monotonic() + seconds, 0
    while (began := time.monotonic()) < ends:
        n += 1
        store.sync.enqueue([NewJob(f"{began}-{n}", "t")])
        took.append((time.monotonic() - began) * 1_000)
    return took


def _say(when: str, took: list[float]) -> None:
    p99 = statistics.quantiles(took, n=100)[98] if len(took) > 1 else took[0]
    p50 = statistics.median(took)
    print(f"{when}: {len(took):,} writes, p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {max(took):.1f} ms")


if __name__ == "__main__":
    main()
