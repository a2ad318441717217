"""Writing a ledger: every fact is on disk, from any process, however it ends."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import App, StoreFull, StoreUnavailable, Worker, current_job
from penstock.core.job import Job, NewJob, Ref, State
from penstock.stores.contract import Fetched, Share, Store, Wake, WorkerOffer
from penstock.stores.memory import MemoryStore
from penstock.testing import FaultyStore
from penstock.verify.ledger import Ledger, acheck, check
from penstock.verify.ledger.history import read
from penstock.verify.ledger.recorded_store import recorded_store
from tests.doubles import Double

VICTIM = """
import os, signal, sys
from penstock import App
from penstock.testing.ledger import Ledger

app = App("memory://")
@app.task
def note(n: int) -> None: ...

Ledger(sys.argv[1]).watch(app)
for n in range(100):
    note.enqueue(n)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _facts(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_a_sigkill_loses_no_fact(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", VICTIM, str(tmp_path)], check=False)
    assert ran.returncode == -signal.SIGKILL
    kinds = [fact["fact"] for fact in _facts(tmp_path)]
    assert (kinds.count("offered"), kinds.count("answered")) == (100, 100)


def test_a_ledger_that_is_closed_or_forgotten_leaves_no_file_open(tmp_path: Path) -> None:
    closed, forgotten = Ledger(tmp_path), Ledger(tmp_path)
    for ledger in (closed, forgotten):
        ledger.fault("other")
    assert len(_numbers(tmp_path)) == 2
    closed.close()
    closed.close()
    assert len(_numbers(tmp_path)) == 1
    del ledger, forgotten
    gc.collect()
    assert len(_numbers(tmp_path)) == 0
    closed.fault("other", cause="afterwards")
    assert len(_numbers(tmp_path)) == 1
    assert len([fact for fact in _facts(tmp_path) if fact["fact"] == "fault"]) == 3


def test_a_fork_does_not_close_what_has_the_number_of_its_parents_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.fault("other")
    (fd,) = _numbers(tmp_path)
    pid = os.fork()
    if pid == 0:
        ledger.close()
        os._exit(0 if _numbers(tmp_path) == [fd] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    ledger.close()
    assert _numbers(tmp_path) == []


def _numbers(folder: Path) -> list[int]:
    """The descriptors of this process for files of this folder."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            if Path(os.readlink(f"/proc/self/fd/{number}")).parent == folder:
                found.append(int(number))
    return found


def test_each_process_has_a_file_of_its_own_also_after_a_fork(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.fault("other", cause="parent")
    pid = os.fork()
    if pid == 0:
        ledger.fault("other", cause="child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert read(tmp_path).parents == {os.getpid(): os.getppid(), pid: os.getpid()}


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)

    def write() -> None:
        for _ in range(500):
            ledger.fault("other", cause="x" * 500)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = read(tmp_path)
    assert len(history.faults) == 2_000
    assert history.torn == 0


def test_a_kill_is_written_down_before_it_is_done(tmp_path: Path) -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Ledger(tmp_path).kill(victim.pid, "to see it die")
    assert victim.wait(60) == -signal.SIGKILL
    (fault,) = read(tmp_path).faults
    assert (fault.kind, fault.target, fault.cause) == ("kill", victim.pid, "to see it die")


async def test_a_task_may_write_its_own_start(tmp_path: Path) -> None:
    app, ledger = App("memory://"), Ledger(tmp_path)

    @app.task
    def own() -> int:
        ledger.started(current_job())
        ledger.ended(current_job())
        return 1

    ledger.watch(app)
    await own.aenqueue()
    await Worker(app, burst=True).run()
    starts = [fact for fact in _facts(tmp_path) if fact["fact"] == "started"]
    assert sorted(bool(fact.get("inside")) for fact in starts) == [False, True]
    verdict = (await acheck(tmp_path, app.store)).require()
    assert (verdict.runs, verdict.completed) == (1, 1)


async def test_a_lost_reply_is_an_unknown_enqueue_and_a_full_store_a_refused_one(tmp_path: Path) -> None:
    app, ledger = App("memory://"), Ledger(tmp_path)

    @app.task
    async def note(n: int) -> int:
        return n

    faulty = FaultyStore(app.store)
    app.use_store(faulty.store)
    ledger.watch(app)
    faulty.lose_reply("enqueue")
    with pytest.raises(StoreUnavailable):
        await note.aenqueue(1)
    faulty.fail("enqueue", error=StoreFull("no room"))
    with pytest.raises(StoreFull):
        note.enqueue(2)
    await note.aenqueue(3)
    await Worker(app, burst=True).run()
    verdict = (await acheck(tmp_path, app.store)).require()
    assert (verdict.offered, verdict.enqueued, verdict.unknown, verdict.refused) == (3, 1, 1, 1)
    assert verdict.completed == 2  # the unknown one was stored


def test_what_operators_do_is_part_of_the_account(tmp_path: Path) -> None:
    app, ledger = App("memory://"), Ledger(tmp_path)

    @app.task
    async def note(n: int) -> int:
        return n

    ledger.watch(app)
    first, second, third = (note.using(delay="1h").enqueue(n) for n in range(3))
    first.cancel()
    second.reschedule(delay=0)
    third.retry()
    import asyncio

    asyncio.run(Worker(app, burst=True).run())
    verdict = check(tmp_path, app.store).require()
    assert (verdict.completed, verdict.cancelled) == (2, 1)
    assert verdict.lateness == []  # those that were moved have no due instant of their own


async def test_an_id_may_have_a_second_life(tmp_path: Path) -> None:
    app, ledger = App("memory://"), Ledger(tmp_path)

    @app.task
    async def note(n: int) -> int:
        return n

    ledger.watch(app)
    for n in range(3):
        await note.using(id="the-same").aenqueue(n)
        await Worker(app, burst=True).run()
        await app.store.delete([Ref("default", "the-same")])
    await note.using(id="the-same").aenqueue(4)
    await Worker(app, burst=True).run()
    verdict = (await acheck(tmp_path, app.store)).require()
    assert (verdict.enqueued, verdict.deleted, verdict.completed) == (4, 3, 1)


async def test_jobs_that_follow_are_accounted_for(tmp_path: Path) -> None:
    from penstock.core.lifecycle import Transition
    from penstock.stores.contract import Settlement, Share

    app, ledger = App("memory://"), Ledger(tmp_path)
    ledger.watch(app)
    store = app.store
    await store.enqueue([NewJob("first", "t")])

    async def fetch() -> list[Settlement]:
        got = await store.fetch(
            [Share("default", 9, 9)], limit=9, lease=9_000, worker="w", token=os.urandom(4).hex()
        )
        return [Settlement(job.lease, Transition(State.COMPLETED)) for job in got.jobs]

    (one,) = await fetch()
    await store.settle([Settlement(one.lease, one.transition, then=(NewJob("second", "t"),))])
    assert (await acheck(tmp_path, store)).unfinished == 1
    await store.settle(await fetch())
    verdict = (await acheck(tmp_path, store)).require()
    assert (verdict.enqueued, verdict.completed) == (2, 2)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_fetch_under_a_token_that_was_offered_says_since_when(tmp_path: Path, waits: bool) -> None:
    app = App("memory://offered")

    @app.task
    def note(n: int) -> None: ...

    Ledger(tmp_path).watch(app)
    offer = WorkerOffer("w", "t" * 24, 15_000)
    if waits:
        await app.store.wait(["default"], timeout=1, offer=offer)
    note.enqueue(1)
    share = Share("default", quota=1, cap=1)
    await app.store.fetch([share], limit=1, lease=15_000, worker="w", token=offer.token)
    (leased,) = [fact for fact in _facts(tmp_path) if fact["fact"] == "leased"]
    assert (0 < leased.get("offered", 0) < leased["sent"]) is waits


def test_a_stall_is_recorded_with_its_length(tmp_path: Path) -> None:
    Ledger(tmp_path).stalled(1.5)
    (stall,) = read(tmp_path).stalls
    assert (stall.pid, stall.seconds) == (os.getpid(), 1.5)


async def test_a_dispatched_job_says_since_when_its_worker_offered_a_slot(tmp_path: Path) -> None:
    store = recorded_store(cast(Store, _Dispatching(MemoryStore())), Ledger(tmp_path))
    await store.wait(["default"], timeout=1, offer=WorkerOffer("w", "t" * 24, 15_000, take=lambda _: None))
    (leased,) = (fact for fact in _facts(tmp_path) if fact["fact"] == "leased")
    assert (leased["by"], leased.get("sent", 0)) == ("wait", 0)
    assert 0 < leased["offered"] < leased["mono"]


class _Dispatching(Double):
    """A store that dispatches a job to whoever waits."""

    async def wait(self, queues: object, *, offer: WorkerOffer, **options: object) -> Wake:
        assert offer.take is not None
        offer.take(Fetched([Job(NewJob("a", "t"), State.RUNNING)], 0))
        return Wake.WORK
