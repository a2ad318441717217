"""Several processes enqueue and work on one SQLite file: `python -m benchmarks.fairness`.

Each process has a worker, and a thread that enqueues one job after another as fast as it can. All of them
write, so all wait for the fair write lock, and each wait is timed. Another connection checkpoints the file
all the time. At the end every acknowledged job must have run exactly once, the store's counts must be
correct, and the file must be intact.
"""

from __future__ import annotations

import asyncio
import collections
import json
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.lock_waits import LockWaits
from benchmarks.machine import describe, fdatasync_ms, percentile
from benchmarks.rig import new_runner
from penstock import App, Worker, current_job
from penstock.stores.sqlite.fair_write_lock import FairWriteLock

_LIMIT_MS = 100.0
#: Minimum part of its fair share that a process must get.
_FAIR = 0.5


@click.command()
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--processes", default=4, show_default=True)
@click.option("--durability", type=click.Choice(["full", "normal"]), default="full", show_default=True)
@click.option("--checkpoint-every", default=0.1, show_default=True, help="Seconds between two of them.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the file goes.  [the system's for temporary files]",
)
def main(
    seconds: float, processes: int, durability: str, checkpoint_every: float, folder: Path | None
) -> None:
    """Run the benchmark. Exit code 1: a wait over 100 ms, unfair shares, or a job lost or run twice."""
    print(describe())
    with tempfile.TemporaryDirectory(prefix="penstock-fair-", dir=folder) as place:
        faults = _run(Path(place), seconds, processes, durability, checkpoint_every)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "fair, sound, nothing lost, nothing twice")
    sys.exit(1 if faults else 0)


def _run(place: Path, seconds: float, processes: int, durability: str, every: float) -> list[str]:
    file = place / "jobs.db"
    url = f"sqlite:///{file}?durability={durability}"
    synced = fdatasync_ms(place, 200)
    print(
        f"fdatasync of 4 KiB there: p50 {percentile(synced, 50):.2f} ms, p99 {percentile(synced, 99):.2f} ms"
    )
    App(url).store.sync.queues()  # create the tables before the measurement
    spawn = multiprocessing.get_context("spawn")
    go, enough, drained = spawn.Event(), spawn.Event(), spawn.Event()
    children = [
        spawn.Process(target=_take_part, args=(number, url, str(place), go, enough, drained))
        for number in range(processes)
    ]
    for child in children:
        child.start()
    _wait_for(lambda: len(list(place.glob("ready.*"))) == processes, 60, children)
    over = threading.Event()
    checkpoints: list[float] = []
    checkpointer = threading.Thread(target=_checkpoint, args=(file, every, over, checkpoints))
    checkpointer.start()
    go.set()
    time.sleep(seconds)
    enough.set()
    app = App(url)
    emptied = app.drained("default", timeout=60)
    drained.set()
    for child in children:
        child.join(60)
    over.set()
    checkpointer.join()
    faults = [] if emptied else ["the queue was not empty a minute after the last enqueue"]
    faults += [f"process {n} ended with {c.exitcode}" for n, c in enumerate(children) if c.exitcode != 0]
    for child in children:
        if child.is_alive():
            child.kill()
    if faults:
        return faults
    reports = [json.loads((place / f"report.{number}").read_text()) for number in range(processes)]
    faults += _judge_shares(reports, seconds)
    print(f"checkpoints by a further connection: {len(checkpoints):,}, the longest {max(checkpoints):.1f} ms")
    faults += _judge_ledger(place, app, processes)
    app.close()
    cx = sqlite3.connect(file)
    (verdict,) = cx.execute("PRAGMA integrity_check").fetchone()
    cx.close()
    print(f"integrity_check: {verdict}")
    return faults if verdict == "ok" else [*faults, f"integrity_check: {verdict}"]


# ── one process ──────────────────────────────────────────────────────────────────────────────────


def _take_part(number: int, url: str, folder: str, go: Any, enough: Any, drained: Any) -> None:
    """Run one process: a producer thread, and a worker in the event loop."""
    place, timed = Path(folder), LockWaits()
    ran = os.open(place / f"ran.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    app = App(url)

    @app.task(name="note")
    async def note() -> None:
        job = current_job()
        os.write(ran, f"{job.id} {job.attempt}\n".encode())

    calls: list[float] = []
    acknowledged: list[str] = []

    def produce() -> None:
        while not enough.is_set():
            started = time.perf_counter()
            acknowledged.append(note.enqueue().id)
            calls.append((time.perf_counter() - started) * 1000)

    async def serve() -> None:
        worker = Worker(app, ["default"])
        running = asyncio.create_task(worker.run())
        (place / f"ready.{number}").touch()
        await asyncio.to_thread(go.wait)
        timed.waits.clear()
        producer = asyncio.create_task(asyncio.to_thread(produce))
        await asyncio.wait({running, producer}, return_when=asyncio.FIRST_COMPLETED)
        await producer
        await asyncio.to_thread(drained.wait)
        worker.stop()
        await running

    with new_runner() as runner:
        runner.run(serve())
    (place / f"enqueued.{number}").write_text("\n".join(acknowledged))
    report = {
        "turns": len(timed.waits),
        "longest": max(timed.waits),
        "p99": percentile(timed.waits, 99),
        "enqueued": len(acknowledged),
        "slowest": max(calls),
        "slow": percentile(calls, 99),
    }
    (place / f"report.{number}").write_text(json.dumps(report))
    app.close()


def _checkpoint(file: Path, every: float, over: threading.Event, took: list[float]) -> None:
    """Checkpoint inside the write lock, as Penstock's processes do (required before SQLite 3.51.3)."""
    lock = FairWriteLock(file.with_name(file.name + "-penstock"))
    lock.open()
    cx = sqlite3.connect(file, isolation_level=None, timeout=30)
    while not over.wait(every):
        lock.acquire()
        try:
            started = time.perf_counter()
            cx.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            took.append((time.perf_counter() - started) * 1000)
        finally:
            lock.release()
    cx.close()
    lock.close()


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────


def _judge_shares(reports: list[dict[str, float]], seconds: float) -> list[str]:
    print(
        f"{'process':>8} {'turns':>9} {'p99 wait':>10} {'longest':>10} {'enqueued':>9} "
        f"{'per s':>7} {'p99 call':>10} {'slowest':>10}"
    )
    for number, report in enumerate(reports):
        print(
            f"{number:>8} {report['turns']:>9,} {report['p99']:>7.2f} ms {report['longest']:>7.2f} ms "
            f"{report['enqueued']:>9,} {report['enqueued'] / seconds:>7,.0f} "
            f"{report['slow']:>7.2f} ms {report['slowest']:>7.2f} ms"
        )
    faults = []
    for what in ("turns", "enqueued"):
        fair = sum(report[what] for report in reports) / len(reports)
        least = min(report[what] for report in reports)
        print(f"{what}: the least has {least / fair:.0%} of a fair share")
        if least < fair * _FAIR:
            faults.append(f"{what}: one process had {least / fair:.0%} of its fair share")
    longest = max(report["longest"] for report in reports)
    if longest > _LIMIT_MS:
        faults.append(f"a writer waited for {longest:.0f} ms at the write lock (limit {_LIMIT_MS:.0f})")
    return faults


def _judge_ledger(place: Path, app: App, processes: int) -> list[str]:
    acknowledged = [
        id for number in range(processes) for id in (place / f"enqueued.{number}").read_text().split()
    ]
    ran: collections.Counter[str] = collections.Counter()
    for number in range(processes):
        ran.update(line.split()[0] for line in (place / f"ran.{number}").read_text().splitlines())
    lost = [id for id in acknowledged if id not in ran]
    twice = [id for id, times in ran.items() if times > 1]
    unknown = set(ran) - set(acknowledged)
    (stats,) = asyncio.run(app.store.stats())
    print(
        f"ledger: {len(acknowledged):,} acknowledged, {len(ran):,} ran, lost {len(lost)}, "
        f"twice {len(twice)}, unknown {len(unknown)}; "
        f"the store says {stats.enqueued:,} enqueued, {stats.processed:,} processed"
    )
    faults = []
    if lost or twice or unknown:
        faults.append(f"lost {lost[:3]}, twice {twice[:3]}, unknown {sorted(unknown)[:3]}")
    if not len(acknowledged) == stats.enqueued == stats.processed:
        faults.append("the store's figures do not agree with the ledger")
    return faults


def _wait_for(done: Any, seconds: float, children: list[Any]) -> None:
    ends = time.monotonic() + seconds
    while not done():
        dead = [child for child in children if child.exitcode is not None]
        if dead or time.monotonic() > ends:
            for child in children:
                child.kill()
            raise click.ClickException("the processes did not get ready")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
