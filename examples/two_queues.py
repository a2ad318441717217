"""Two queues with slots of their own: never more than 10 reports and 20 mails at once in a worker.

Run it: `python examples/two_queues.py`. It enqueues both, shows live figures while a worker runs them,
stops that worker (TERM) in the middle, and lets a second one run the remaining jobs. A middleware measures
how many run at once. `--scale` sets the duration of the work (default 1).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from penstock import App, Job, State

if __name__ == "__main__":  # the workers import this file too, and find the directory in the environment
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scale", default="1", help="how long the work takes [1]")
    os.environ["OFFICE_SCALE"] = options.parse_args().scale
    os.environ["OFFICE_DIR"] = tempfile.mkdtemp(prefix="two-queues-")

HERE = Path(os.environ.get("OFFICE_DIR", "."))
SCALE = float(os.environ.get("OFFICE_SCALE", "1"))
REPORTS, MAILS = 100, 300
SLOTS = {"reports": 10, "mails": 20}

app = App(f"sqlite:///{HERE}/jobs.db")


@app.task(queue="reports", retention="1h")
def report(number: int) -> None:
    """Do blocking work, in a thread."""
    time.sleep(0.25 * SCALE)


@app.task(queue="mails", retention="1h")
async def mail(number: int) -> None:
    """Wait, on the event loop."""
    await asyncio.sleep(0.2 * SCALE)


# ── measuring: a middleware around all attempts, and one more around reports ─────────────────────


@app.on_startup
def begin() -> None:
    app.state.now, app.state.most, app.state.done = Counter(), Counter(), Counter()


@app.around_attempt
async def count(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
    """Count the running jobs of each queue and their maximum.

    It runs on the event loop, so it needs no lock.
    """
    state = app.state
    state.now[job.queue] += 1
    state.most[job.queue] = max(state.most[job.queue], state.now[job.queue])
    try:
        return await call()
    finally:
        state.now[job.queue] -= 1


@app.around_attempt(queue="reports")
async def tally(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
    """Count the attempts of one queue; this middleware runs inside the global one."""
    value = await call()
    app.state.done["reports, by their own middleware"] += 1
    return value


@app.on_shutdown
def tell() -> None:
    """Write the counts to a file when the worker ends."""
    said = {"most": app.state.most, "done": app.state.done, "left_over": +app.state.now}
    (HERE / f"worker-{os.getpid()}.json").write_text(json.dumps(said))


# ── the program ──────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    app.enqueue_many([report.job(n) for n in range(REPORTS)])
    app.enqueue_many([mail.job(n) for n in range(MAILS)])
    print(f"enqueued: {REPORTS} reports and {MAILS} mails; slots: 10 for reports, 20 for mails")

    worker = start_worker()
    watch(worker, until=(REPORTS + MAILS) // 4)
    worker.send_signal(signal.SIGTERM)
    code = worker.wait(60)
    left = counts()
    running = sum(per_state.get(State.RUNNING, 0) for per_state in left.values())
    assert code == 0
    assert running == 0
    assert 0 < done(left) < REPORTS + MAILS
    print("TERM: the worker ended what ran, and went; nothing was cut off")

    second = start_worker("--burst")
    watch(second, until=REPORTS + MAILS)
    assert second.wait(60) == 0
    report_all()


def watch(worker: subprocess.Popen[bytes], until: int) -> None:
    """Print live figures from the store until `until` jobs are done."""
    while done(now := counts()) < until:
        assert worker.poll() is None, (HERE / "worker.log").read_text()
        shown = "; ".join(
            f"{name} {per.get(State.AVAILABLE, 0)} waiting, {per.get(State.RUNNING, 0)} leased, "
            f"{per.get(State.COMPLETED, 0)} done"
            for name, per in now.items()
        )
        print(f"live: {shown}")
        time.sleep(0.25 * SCALE)


def report_all() -> None:
    """Count the results and check them."""
    workers = [json.loads(path.read_text()) for path in sorted(HERE.glob("worker-*.json"))]
    assert len(workers) == 2
    most: Counter[str] = Counter()
    for one in workers:
        assert not one["left_over"]
        for queue, n in one["most"].items():
            most[queue] = max(most[queue], n)
    for queue, slots in SLOTS.items():
        print(f"{queue}: at most {most[queue]} at once")
        assert most[queue] == slots
    tallied = sum(one["done"]["reports, by their own middleware"] for one in workers)
    print(f"reports: {tallied} came by their own middleware")
    assert tallied == REPORTS

    totals = {one.name: one for one in asyncio.run(app.store.stats())}
    for queue, n in (("reports", REPORTS), ("mails", MAILS)):
        assert counts()[queue] == {State.COMPLETED: n}
        assert (totals[queue].processed, totals[queue].failed) == (n, 0), "no job ran twice"
    print(f"done: {REPORTS} reports and {MAILS} mails, each in one attempt")


def counts() -> dict[str, dict[State, int]]:
    return {info.name: info.counts for info in app.store.sync.queues()}


def done(counts: dict[str, dict[State, int]]) -> int:
    return sum(per_state.get(State.COMPLETED, 0) for per_state in counts.values())


def start_worker(*options: str) -> subprocess.Popen[bytes]:
    """Start `penstock worker` with more slots than both queues may use together."""
    queues = ",".join(f"{name}:slots={slots}" for name, slots in SLOTS.items())
    command = [sys.executable, "-m", "penstock", "worker", "two_queues:app"]
    with (HERE / "worker.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--queues", queues, "--concurrency", "40", *options],
            cwd=Path(__file__).parent,
            stdout=log,
            stderr=log,
        )


if __name__ == "__main__":
    try:
        main()
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(HERE)
