"""Several processes that enqueue and work on one file at the same time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter

from penstock import App
from penstock.core.job import State
from penstock.stores.contract import QueueStats
from penstock.stores.sqlite import SqliteStore
from penstock.verify.ledger import check
from tests.system.conftest import Place

_SECONDS = 6
_PROCESSES = 4

_PARTY = '''\
"""Enqueues as fast as it gets its turn, and works, until told to stop."""

import asyncio
import json
import sys
import time
from pathlib import Path

from penstock import Worker
from tasks import app, quick

number, seconds = int(sys.argv[1]), float(sys.argv[2])
here = Path(__file__).parent


def produce() -> dict[str, int]:
    ends, n = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        quick.enqueue(number)
        n += 1
    return {"enqueued": n}


async def main() -> None:
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    (here / f"ready.{number}").touch()
    while not (here / "go").exists():
        await asyncio.sleep(0.005)
    report = await asyncio.to_thread(produce)
    assert await app.adrained("default", 60)
    worker.stop()
    await running
    (here / f"report.{number}").write_text(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main())
'''


def test_four_processes_share_a_file_fairly_and_lose_nothing(place):
    (place.folder / "ledger").mkdir()
    (place.folder / "party.py").write_text(_PARTY)
    place.app.store.sync.queues()  # the tables, before anybody is in a hurry
    programs = [place.start("party.py", str(n), str(_SECONDS)) for n in range(_PROCESSES)]
    place.until(lambda: len(list(place.folder.glob("ready.*"))) == _PROCESSES, "all are ready")
    place.open("go")
    assert [program.wait(_SECONDS + 60) for program in programs] == [0] * _PROCESSES
    reports = [json.loads((place.folder / f"report.{n}").read_text()) for n in range(_PROCESSES)]
    fair = sum(report["enqueued"] for report in reports) / _PROCESSES
    shares = [report["enqueued"] / fair for report in reports]
    # without the fair write lock one of them waits for all the others to pause
    assert min(shares) > 0.1, f"shares of what was enqueued: {shares}"
    ran = Counter(line["pid"] for line in place.starts())
    assert len(ran) == _PROCESSES, "one of them did not come to work"
    total = sum(report["enqueued"] for report in reports)
    assert total == ran.total()
    judge = SqliteStore(place.file)
    verdict = check(place.folder / "ledger", judge).require()
    judge.close()
    assert (verdict.completed, verdict.lost, verdict.runs) == (total, 0, total)
    _counts_are_true(place, total)


def _counts_are_true(place: Place, total: int) -> None:
    """What is shown, and what is there when somebody counts it by hand."""
    shown = place.counts()
    cx = sqlite3.connect(place.file)
    assert cx.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    cx.close()
    said = json.loads(place.penstock("stats", "--json", "--url", place.url).stdout)
    assert total == shown[State.COMPLETED] == len(_listed(place))
    assert str(total) in json.dumps(said)


def _listed(place: Place) -> list[str]:
    async def walk() -> list[str]:
        ids: list[str] = []
        after = None
        while True:
            page = await place.app.store.list_jobs(state=State.COMPLETED, after=after, limit=1_000)
            ids += [job.id for job in page.jobs]
            after = page.next
            if after is None:
                return ids

    return asyncio.run(walk())


def test_counts_are_true_while_workers_are_killed(place):
    worker = place.worker("--processes", "2", "--concurrency", "10", ready=2)
    tasks = place.tasks
    handles = []
    ends = time.monotonic() + 4
    while time.monotonic() < ends:
        calls = [tasks.nap.job(0.02) for _ in range(40)]
        calls += [tasks.crash.using(max_attempts=1).job("kill")]
        calls += [tasks.fail.using(max_attempts=2, retry=0.05).job()]
        handles += tasks.app.enqueue_many(calls)
        time.sleep(0.4)
    jobs = place.until_ended(handles)
    states = Counter(job.state for job in jobs)
    assert states[State.DEAD] == sum(job.task in ("crash", "fail") for job in jobs)
    place.until(lambda: place.counts() == dict(states), "the counts agree with the jobs")
    (stats,) = _stats(place)
    assert stats.enqueued == len(handles)
    assert not worker.ended


def _stats(place: Place) -> list[QueueStats]:
    return asyncio.run(place.app.store.stats())


# ── whose turn it is ─────────────────────────────────────────────────────────────────────────────


def test_jobs_that_cannot_run_do_not_block_jobs_that_can(place):
    """Delayed jobs of high priority, those of a paused queue, of another queue, of another namespace."""
    tasks = place.tasks
    other = App(place.url, namespace="other")
    elsewhere = other.task(name="quick")(tasks.quick.function)
    calls = [tasks.quick.using(delay=300, priority=100).job(n) for n in range(100)]
    calls += [tasks.quick.using(queue="paused", priority=100).job(n) for n in range(100)]
    calls += [tasks.quick.using(queue="unserved", priority=100).job(n) for n in range(100)]
    tasks.app.enqueue_many(calls)
    other.enqueue_many([elsewhere.using(priority=100).job(n) for n in range(100)])
    assert place.penstock("queues", "pause", "paused", "--url", place.url).returncode == 0
    place.worker("--queues", "default,paused", "--concurrency", "1")
    place.until_ended([tasks.quick.enqueue(n) for n in range(20)])
    assert len(place.starts()) == 20
    other.close()
