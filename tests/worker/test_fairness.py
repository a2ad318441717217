"""Distribution of slots: by weight or in strict order, with a limit per queue."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.app.task import Task
from penstock.client.handle import Handle
from penstock.core.ids import mint_token
from penstock.core.job import State
from penstock.core.lifecycle import released
from penstock.core.outcomes import QueuePosition
from penstock.inspector import Inspector
from penstock.stores.contract import Settlement, Share, Store
from penstock.worker import Worker
from penstock.worker.executor.process_backlog import MOST_WAITING
from penstock.worker.queues import Queue
from tests.worker.conftest import PATIENCE, Dam, at_work, ended, in_a_burst, patient, quick, until
from tests.worker.task_bodies import act, lines, linger, made, tell


class Peak:
    """How many of each queue ran at once, at most."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def stay(self, seconds: float) -> None:
        queue = current_job().queue
        self.now[queue] += 1
        self.most[queue] = max(self.most[queue], self.now[queue])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now[queue] -= 1


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 100])
async def test_full_queues_start_by_their_weights(app: App, concurrency: int) -> None:
    started: list[str] = []
    enough = asyncio.Event()

    @app.task
    async def work() -> None:
        started.append(current_job().queue)
        if len(started) == 10_000:
            enough.set()

    for queue, stock in (("low", 2_000), ("default", 4_000), ("critical", 7_000)):
        later = work.using(queue=queue)
        await app.aenqueue_many([later.job() for _ in range(stock)])
    queues = [Queue("critical", weight=6), Queue("default", weight=3), Queue("low", weight=1)]
    async with at_work(app, queues, concurrency=concurrency), asyncio.timeout(PATIENCE):
        await enough.wait()
    share = Counter(started[:10_000])
    assert share["critical"] == pytest.approx(6_000, abs=300)
    assert share["default"] == pytest.approx(3_000, abs=300)
    assert share["low"] == pytest.approx(1_000, abs=300)


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_strict_order_starts_none_of_the_lower_queue_while_the_higher_has_any(
    app: App, concurrency: int
) -> None:
    started: list[str] = []

    @app.task
    async def work(more: int) -> None:
        started.append(current_job().queue)
        if more:  # there is always another one before this one has ended
            await work.using(queue="high").aenqueue(more - 1)

    await app.aenqueue_many([work.using(queue="low").job(0) for _ in range(100)])
    await app.aenqueue_many([work.using(queue="high").job(9) for _ in range(40)])
    await in_a_burst(app, ["high", "low"], concurrency=concurrency, strict=True)
    first = started.index("low")
    assert len(started) == 500
    # what is fetched together starts together: the last of the high ones may leave slots for low ones
    assert started[:first] == ["high"] * first
    assert first >= 400 - concurrency


async def test_a_queue_never_has_more_slots_than_it_may(app: App) -> None:
    peak = Peak()

    @app.task
    async def work() -> None:
        await peak.stay(0.002)

    for queue in ("ten", "twenty", "rest"):
        await app.aenqueue_many([work.using(queue=queue).job() for _ in range(300)])
    queues = [Queue("ten", slots=10), Queue("twenty", slots=20), Queue("rest")]
    await in_a_burst(app, queues, concurrency=60, config=patient())
    assert (peak.most["ten"], peak.most["twenty"]) == (10, 20)
    assert peak.most["rest"] > 10


async def test_a_queue_at_its_limit_takes_no_others_slot(app: App) -> None:
    go_on = asyncio.Event()
    running: list[str] = []

    @app.task(queue="narrow")
    async def hold() -> None:
        running.append("narrow")
        await go_on.wait()

    @app.task(queue="wide")
    async def short(i: int) -> int:
        return i

    await app.aenqueue_many([hold.job() for _ in range(50)])
    async with at_work(app, [Queue("narrow", slots=2), "wide"], concurrency=4, config=patient()):
        await until(lambda: len(running) == 2, "the narrow queue is full")
        handles = await app.aenqueue_many([short.job(i) for i in range(200)])
        assert [await handle.aresult(60) for handle in handles] == list(range(200))
        assert len(running) == 2
        go_on.set()
        await until(lambda: len(running) == 50, "the others had their turn")


async def test_a_job_without_a_slot_of_its_queue_says_so(app: App) -> None:
    go_on = asyncio.Event()

    @app.task(queue="narrow")
    async def hold() -> bool:
        return await go_on.wait()

    handles = await app.aenqueue_many([hold.job() for _ in range(2)])
    async with at_work(app, [Queue("narrow", slots=1), "wide"], concurrency=4, config=patient()) as worker:
        await until(lambda: worker.info().full_queues == ("narrow",), "the slot of the queue is taken")
        await app.store.announce(worker.info())  # as it does every few seconds
        views = [view for handle in handles for view in await Inspector(app.store).why(handle.id)]
        says = {reason.says for view in views if view.state == "available" for reason in view.reasons}
        assert says == {"all slots that the only worker of the queue may use for it are taken"}
        go_on.set()
        for handle in handles:
            await ended(handle)
        assert worker.info().full_queues == ()


async def test_a_full_queue_continues_as_soon_as_it_may_while_others_are_empty(app: App) -> None:
    """The fetcher waits for work in the empty queue; a slot of the full one must wake it too."""
    peak = Peak()

    @app.task(queue="narrow")
    async def work() -> None:
        await peak.stay(0.002)

    await app.aenqueue_many([work.job() for _ in range(100)])
    async with at_work(app, [Queue("narrow", slots=2), "empty"], config=patient(safety_poll="1h")):
        assert await app.adrained("narrow", timeout=60)
    assert peak.most["narrow"] == 2


async def test_slots_count_per_queue_also_where_attempts_fail_or_time_out(app: App) -> None:
    peak = Peak()

    @app.task(queue="narrow", timeout="10ms", max_attempts=2, retry="1ms")
    async def work(how: str) -> None:
        await peak.stay(0.002 if how != "slow" else 60)
        if how == "fail":
            raise ValueError

    await app.aenqueue_many([work.job(how) for how in ["fail", "slow", "fine"] * 10])
    await in_a_burst(app, [Queue("narrow", slots=3)], config=patient())
    assert peak.most["narrow"] == 3
    (info,) = await app.store.queues()
    assert sum(n for state, n in info.counts.items() if state is not State.DEAD) == 0


# ── process tasks ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.system
@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_process_tasks_take_their_own_slots_and_leave_the_others_to_other_queues(
    app: App, delivery: Any, tmp_path: Path
) -> None:
    """At-most-once ones are held up by the record of their start, and must not slip through meanwhile."""
    gate = tmp_path / "gate"
    heavy = made(app, "process", tell, queue="heavy", delivery=delivery)
    light = made(app, "async", act, queue="light")
    handles = [await heavy.aenqueue(str(gate)) for _ in range(12)]
    config = patient(process_slots=2)
    async with at_work(app, concurrency=4, config=config) as worker:
        await until(lambda: len(_pids(worker)) == 2, "both children are there")
        quick_ones = await app.aenqueue_many([light.job("return") for _ in range(100)])
        for handle in quick_ones:
            assert await handle.aresult(60) == "done in attempt 1"
        assert worker._services is not None
        assert worker._services.slots.running == 2
        assert await _count(app, "heavy", State.RUNNING) <= 2 + MOST_WAITING
        gate.touch()
        for handle in handles:
            assert await handle.aresult(60) == "told"
            job = await handle.ajob()
            assert job is not None
            assert job.attempt == 1
        assert len(_pids(worker)) <= 2


@pytest.mark.system
async def test_short_process_tasks_do_not_hold_up_the_jobs_of_other_queues(app: App, tmp_path: Path) -> None:
    """The worker knows them as short, and takes many; the only slot that they may use is taken for long."""
    gate = tmp_path / "gate"
    heavy = made(app, "process", act, queue="heavy")
    holding = made(app, "process", tell, queue="heavy")
    light = made(app, "async", act, queue="light", name="light")
    async with at_work(app, concurrency=10, config=patient(process_slots=1)):
        for handle in await app.aenqueue_many([heavy.job("return") for _ in range(50)]):
            assert await handle.aresult(60) == "done in attempt 1"
        held = await holding.aenqueue(str(gate))
        await _progress(held)
        many = await app.aenqueue_many([heavy.job("return") for _ in range(100)])
        for _ in range(20):
            handle = await light.aenqueue("return")
            assert await handle.aresult(60) == "done in attempt 1"
        gate.touch()
        assert await held.aresult(60) == "told"
        for handle in many:
            assert await handle.aresult(60) == "done in attempt 1"


@pytest.mark.system
async def test_async_tasks_of_a_queue_pass_its_process_tasks_when_those_are_gone(
    app: App, tmp_path: Path
) -> None:
    """A queue once full of process tasks is not shut for ever."""
    gate = tmp_path / "gate"
    heavy = made(app, "process", tell)
    light = made(app, "async", act)
    running = await heavy.aenqueue(str(gate))
    waiting = [await heavy.aenqueue(str(gate)) for _ in range(3)]
    async with at_work(app, concurrency=4, config=patient(process_slots=1, safety_poll="200ms")):
        await _progress(running)
        for handle in waiting:
            await handle.acancel()
        handle = await light.aenqueue("return")
        assert await handle.aresult(60) == "done in attempt 1"
        gate.touch()
        assert await running.aresult(60) == "told"


@pytest.mark.system
@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_jobs_behind_process_tasks_that_wait_for_a_slot_start_at_once(
    app: App, delivery: Any, tmp_path: Path
) -> None:
    """They stand aside, however many slots for other kinds there are, and go on in their order."""
    gate = tmp_path / "gate"
    heavy = made(app, "process", tell, delivery=delivery)
    light = made(app, "async", act)
    first = await heavy.aenqueue(str(gate))
    waiting = await app.aenqueue_many([heavy.job(str(gate)) for _ in range(12)])
    async with at_work(app, concurrency=4, config=patient(process_slots=1)) as worker:
        await _progress(first)
        for _ in range(3):
            behind = await app.aenqueue_many([light.job("return") for _ in range(20)])
            for handle in behind:
                assert await handle.aresult(60) == "done in attempt 1"
        assert worker._services is not None
        assert worker._services.slots.process_busy == 1
        assert worker.info().full_tasks == (heavy.name,)
        gate.touch()
        jobs = [await ended(handle) for handle in (first, *waiting)]
    assert [job.attempt for job in jobs] == [1] * 13
    ends = [job.ended_at or 0 for job in jobs]
    assert ends == sorted(ends)


@pytest.mark.slow
async def test_jobs_in_the_backlog_are_returned_for_other_workers(
    app: App, new_app: Any, tmp_path: Path
) -> None:
    """Another worker has a free process slot: it need not wait for the one that came first."""
    gate = tmp_path / "gate"
    apps = [app, new_app()]
    tasks = [(made(one, "process", tell), made(one, "async", act)) for one in apps]
    (heavy, light), _ = tasks
    first = await heavy.aenqueue(str(gate))
    async with at_work(app, concurrency=4, config=patient(process_slots=1)) as worker:
        await _progress(first)
        second = await heavy.aenqueue(str(gate))
        assert worker._services is not None
        assert await (await light.aenqueue("return")).aresult(60) == "done in attempt 1"
        async with at_work(apps[1], concurrency=4, config=patient(process_slots=1)):
            await _progress(second)
            gate.touch()
            assert await second.aresult(60) == "told"
            assert await first.aresult(60) == "told"
    job = await second.ajob()
    assert job is not None
    assert (job.attempt, job.lost) == (1, 0)


@pytest.mark.slow
async def test_a_worker_keeps_few_process_tasks_and_does_not_busy_loop(app: App, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    heavy = made(app, "process", tell)
    handles = await app.aenqueue_many([heavy.job(str(gate)) for _ in range(200)])
    asked = Asked(app)
    async with at_work(app, concurrency=20, config=patient(process_slots=1)):
        await _progress(handles[0])
        most, fetches = 0, asked.fetches
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            most = max(most, await _count(app, "default", State.RUNNING))
            await asyncio.sleep(0.01)
        assert most <= 1 + MOST_WAITING + 19
        assert asked.fetches - fetches < 40
        for handle in handles[1:]:
            await handle.acancel()
        gate.touch()


# ── look-ahead ───────────────────────────────────────────────────────────────────────────────────


async def test_a_short_job_behind_long_ones_starts_on_an_idle_worker(
    app: App, new_app: Any, tmp_path: Path
) -> None:
    """The first worker is used to short jobs, and so it takes more than it can start."""
    started: list[str] = []
    other: App = new_app()
    tasks: dict[App, tuple[Task[..., Any], Task[..., Any]]] = {}
    for one in (app, other):

        @one.task(name="short")
        async def short() -> None:
            started.append(current_job().id)

        tasks[one] = (made(one, "async", tell), short)
    long, brief = tasks[app]
    async with at_work(app, concurrency=1), at_work(other, concurrency=3):
        await app.aenqueue_many([brief.job() for _ in range(2_000)])
        await until(lambda: len(started) == 2_000, "both are warm")
        gate = tmp_path / "gate"
        await app.aenqueue_many([long.job(str(gate)) for _ in range(3)])
        await brief.aenqueue()
        await until(lambda: len(started) == 2_001, "the short job has started, and no long one has ended")
        gate.touch()
        assert await app.adrained("default", timeout=60)


async def test_a_job_without_a_free_slot_is_returned_to_its_place_uncharged(app: App) -> None:
    dam = Dam(app, 4_000)
    await dam.fill()
    async with at_work(app, concurrency=1) as worker:
        await dam.full(worker)
        left = [handle.id for i, handle in enumerate(dam.handles) if i not in set(dam.ran)]

        async def back() -> bool:
            return await _count(app, "default", State.AVAILABLE) == len(left)

        await until(back, "what found no slot is available again")
        fetched = await app.store.fetch(
            [Share("default", 50, 50)], limit=50, lease=60_000, worker="another", token=mint_token()
        )
        assert [job.id for job in fetched.jobs] == left[:50], "each at its own place"
        assert {job.attempt for job in fetched.jobs} == {1}, "for the other it is the first attempt"
        await app.store.settle([Settlement(job.lease, released(QueuePosition.OWN)) for job in fetched.jobs])
        dam.open()
        await until(lambda: len(dam.ran) == dam.jobs, "the rest runs")
    assert sorted(dam.ran) == list(range(dam.jobs)), "each once"


async def test_nothing_is_fetched_ahead_from_queues_with_slots(app: App) -> None:
    ahead: list[int] = []

    @app.task
    async def work() -> None:
        assert worker._services is not None
        ahead.append(worker._services.slots.buffered)

    await app.aenqueue_many([work.job() for _ in range(1_000)])
    worker = Worker(app, [Queue("default", slots=5)], concurrency=10, burst=True, config=quick())
    await worker.run()
    assert len(ahead) == 1_000
    assert max(ahead) <= 5


async def test_long_jobs_are_not_fetched_ahead(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = made(app, "async", linger)
    await app.aenqueue_many([task.job(str(began), 0.1) for _ in range(6)])
    async with at_work(app, concurrency=2, config=quick(slot_wait="10s")) as worker:
        await until(lambda: len(lines(began)) >= 3, "the first ones have ended")
        assert worker._services is not None
        assert worker._services.slots.buffered == 0
        assert await app.adrained("default", timeout=60)


def _pids(worker: Worker) -> list[int]:
    assert worker._services is not None
    pool = worker._services.executor._processes._pool
    return [] if pool is None else pool.pids


async def _count(app: App, queue: str, state: State) -> int:
    return sum(info.counts.get(state, 0) for info in await app.store.queues() if info.name == queue)


class Asked:
    """Counts how often an app's store is asked for jobs."""

    def __init__(self, app: App) -> None:
        self.fetches = 0
        self._store = app.store
        app.use_store(cast(Store, self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fetch(self, *args: Any, **options: Any) -> Any:
        self.fetches += 1
        return await self._store.fetch(*args, **options)


async def _progress(handle: Handle[Any]) -> None:
    async def said() -> bool:
        job = await handle.ajob()
        return job is not None and job.progress is not None

    await until(said, "it has begun")
