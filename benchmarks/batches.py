"""Members through batches while workers are killed: each member in exactly one completed batch.

By hand: `python -m benchmarks.batches sqlite:////tmp/jobs.db --members 100000 --workers 4 --kills 2`. Every
batch that completes writes its members into a ledger, one file per batch and attempt, before it returns; what
the store says has completed is compared with it at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from penstock import App, Batch, State, Worker, current_job

app = App(os.environ.get("BATCHES_URL", "memory://"))
_KEYS = 50


@app.task(batch=Batch(max_size=100, max_wait="2s", grace="500ms"), retention="1d", retry="100ms")
async def collect(numbers: list[int]) -> int:
    job = current_job()
    await asyncio.sleep(0.01)  # so that kills meet running batches
    path = Path(os.environ["BATCHES_LEDGER"]) / f"{job.id}~{job.attempt}"
    path.write_text(json.dumps(numbers))
    return len(numbers)


def _worker(folder: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "BATCHES_LEDGER": folder}
    return subprocess.Popen([sys.executable, "-m", "benchmarks.batches", "--serve"], env=env)


async def _serve() -> None:
    await Worker(app, concurrency=10).run()


def _produce(members: int) -> None:
    users = [collect.using(batch_key=f"k{key}") for key in range(_KEYS)]
    for start in range(0, members, 1_000):
        some = range(start, min(start + 1_000, members))
        app.enqueue_many([users[n % _KEYS].job(n) for n in some])


def _left() -> int:
    counts: Counter[State] = Counter()
    for info in app.store.sync.queues():
        counts.update(info.counts)
    return sum(n for state, n in counts.items() if state not in (State.COMPLETED, State.CANCELLED))


def _completed() -> tuple[list[str], int]:
    """The batches that the store says have completed, and how many members have."""

    async def ask() -> tuple[list[str], int]:
        batches, members, after = [], 0, None
        while True:
            page = await app.store.list_jobs(state=State.COMPLETED, after=after, limit=500)
            for job in page.jobs:
                if job.members:
                    batches.append(job.id)
                else:
                    members += 1
            if (after := page.next) is None:
                return batches, members

    return asyncio.run(ask())


def _check(folder: Path, members: int) -> bool:
    batches, ended = _completed()
    said: dict[str, list[int]] = {}
    again = 0
    for path in folder.iterdir():
        id = path.name.partition("~")[0]
        again += id in said
        said[id] = json.loads(path.read_text())
    times = Counter(n for id in batches for n in said.get(id, []))
    missing, double = members - len(times), sum(n > 1 for n in times.values())
    print(f"{members:,} members, {ended:,} have completed, in {len(batches):,} batches; {again} ran again")
    print(f"missing from all completed batches: {missing}; in more than one: {double}")
    return (missing, double, ended) == (0, 0, members)


def _run(members: int, workers: int, kills: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="penstock-batches-") as folder:
        serving = [_worker(folder) for _ in range(workers)]
        began = time.monotonic()
        # all shall be there to be counted: a queue keeps 100 000 finished ones unless it is told to
        app.queue("default").settings(keep_finished=2 * members)
        try:
            _produce(members)
            for n in range(kills):
                time.sleep(1)
                victim = serving[n % workers]
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                serving[n % workers] = _worker(folder)
            while _left():
                time.sleep(0.2)
        finally:
            for process in serving:
                process.terminate()
            for process in serving:
                process.wait()
        print(f"{time.monotonic() - began:.1f} s")
        return _check(Path(folder), members)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--members", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--serve", action="store_true")
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(_serve())
        return 0
    if asked.url:  # those who are started from here, and this process itself, shall know it at their import
        env = {**os.environ, "BATCHES_URL": asked.url}
        args = [f"--members={asked.members}", f"--workers={asked.workers}", f"--kills={asked.kills}"]
        return subprocess.run([sys.executable, "-m", "benchmarks.batches", *args], env=env).returncode
    return 0 if _run(asked.members, asked.workers, asked.kills) else 1


if __name__ == "__main__":
    # as the module that it is: a task's name must be the same in all processes
    from benchmarks import batches

    sys.exit(batches.main())
