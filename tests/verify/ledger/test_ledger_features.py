"""Jobs with keys, limits, batches, periodic entries and unique rules on real workers give no finding."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import App, Batch, Queue, Unique, Worker, current_job
from penstock.errors import DuplicateJob
from penstock.verify.ledger import Ledger, acheck, summary
from penstock.verify.ledger.history import read
from tests.verify.ledger.honest_ledger import promises

SEED = 5


@pytest.fixture(params=["memory", "sqlite", "redis", "cluster"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}
    url = urls.get(request.param) or request.getfixturevalue(request.param).url
    app = App(url, namespace=f"ledger-{os.urandom(4).hex()}")
    yield app
    app.close()


async def test_two_workers_that_do_everything_leave_an_account_without_findings(
    app: App, tmp_path: Path
) -> None:
    Ledger(tmp_path / "ledger").watch(app)
    ticked = asyncio.Event()
    offer = _tasks(app, ticked)
    await app.queue("single").asettings(max_running=2)
    queues = [Queue("default"), Queue("single")]
    workers = [asyncio.create_task(Worker(app, queues=queues, concurrency=8).run()) for _ in range(2)]
    rng = random.Random(SEED)
    try:
        for n in range(150):
            try:
                await rng.choice(offer)(n)
            except DuplicateJob:
                pass
            if n % 25 == 0:
                await asyncio.sleep(0.02)
        await asyncio.wait_for(ticked.wait(), 60)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    await app.store.delete_entries([entry.ref for entry in (await app.store.entries()).entries])
    await Worker(app, queues=queues, burst=True).run()
    verdict = (await acheck(tmp_path / "ledger", app.store)).require()
    history = read(tmp_path / "ledger")
    assert [(one.max_running, one.told) for one in history.limits["single"]] == [(2, False), (2, True)]
    by_queue = {story.ref.queue for story in history.stories}
    assert by_queue == {"default", "single"}
    assert any(story.batches for story in history.stories)
    assert any(story.offer and story.offer.entry for story in history.stories)
    assert any(v.verdict == "duplicate" for story in history.stories for v in story.verdicts)
    ended = verdict.completed + verdict.dead + verdict.cancelled
    assert 0 <= ended - verdict.enqueued <= verdict.unknown, "what had no reply may be stored"
    told = summary(history, verdict, began=history.wall(0) or 0)
    assert (told["verdict"], told["enqueued"], told["findings"]) == ("kept", verdict.enqueued, [])
    assert sum(second["enqueued"] for second in told["throughput"][-10:]) == verdict.enqueued


async def test_a_store_that_lets_too_many_of_a_key_run_is_found(tmp_path: Path) -> None:
    """The terms that the ledger was told are narrower than those that the store was."""
    app = App("memory://")
    Ledger(tmp_path).watch(app)

    @app.task(concurrency_key="n", max_running_per_key=3)
    async def limited(n: int) -> None:
        await asyncio.sleep(0.05)

    for _ in range(6):
        await limited.aenqueue(1)
    await Worker(app, burst=True).run()
    assert (await acheck(tmp_path, app.store)).ok
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text().replace('"partition_most":3', '"partition_most":2'))
    assert promises((await acheck(tmp_path, app.store)).findings) == {"limits"}


def _tasks(app: App, ticked: asyncio.Event) -> list[Callable[[int], object]]:
    @app.task(concurrency_key="key", retry=0.01)
    async def limited(key: int, n: int) -> None:
        await asyncio.sleep(0.002)
        if n % 7 == 0 and current_job().attempt == 1:
            raise ValueError("once more")

    @app.task(concurrency_key="key", ordered=True, retry=0.01, max_attempts=2)
    async def in_order(key: int, n: int) -> None:
        if n % 5 == 0:
            raise ValueError("once more")

    @app.task(batch=Batch(max_size=5, max_wait="50ms"))
    async def together(items: list[int]) -> None: ...

    @app.task(unique=Unique(by="key", on_conflict="reject"))
    async def only_one(key: int, n: int) -> None:
        await asyncio.sleep(0.01)

    @app.task(unique=Unique(by="key", states="queued"))
    async def only_one_queued(key: int, n: int) -> None:
        await asyncio.sleep(0.005)

    @app.task(unique=Unique(by="key", states=("queued", "running", "finished"), period="200ms"))
    async def once_in_a_while(key: int, n: int) -> int:
        return n

    @app.task(queue="single")
    async def single(n: int) -> None:
        await asyncio.sleep(0.003)

    @app.task
    async def plain(n: int) -> int:
        return n

    @app.periodic(every="1s")
    @app.task
    async def each_second() -> None:
        ticked.set()

    return [
        lambda n: limited.aenqueue(n % 3, n),
        lambda n: in_order.aenqueue(n % 2, n),
        lambda n: in_order.using(delay=0.03).aenqueue(n % 2, n),
        lambda n: together.aenqueue(n),
        lambda n: only_one.aenqueue(n % 3, n),
        lambda n: only_one_queued.aenqueue(n % 3, n),
        lambda n: only_one_queued.using(delay=0.05).aenqueue(n % 3, n),
        lambda n: once_in_a_while.aenqueue(n % 3, n),
        lambda n: single.aenqueue(n),
        lambda n: plain.using(delay=0.02, priority=n % 5).aenqueue(n),
    ]
