"""A burst worker runs all available jobs, and ends."""

from __future__ import annotations

from pathlib import Path

from penstock.app.app import App
from penstock.core.job import State
from tests.worker.conftest import at_work, becomes, ended, in_a_burst, patient, until
from tests.worker.task_bodies import act, lines, linger, made


async def test_a_burst_without_jobs_ends_at_once(app: App) -> None:
    made(app, "async", act)
    await in_a_burst(app, config=patient(safety_poll="1h"))


async def test_a_burst_runs_what_is_due_within_a_second_and_leaves_what_is_not(app: App) -> None:
    task = made(app, "async", act)
    soon = await task.using(delay="0.5s").aenqueue("return")
    later = await task.using(delay="1h").aenqueue("return")
    await in_a_burst(app, config=patient())
    job = await ended(soon)
    assert job.state is State.COMPLETED
    assert job.fetched_at is not None
    assert job.fetched_at >= job.run_at >= job.enqueued_at + 500
    assert (await becomes(later, State.SCHEDULED)).attempt == 0


async def test_a_burst_waits_for_what_runs_and_for_what_that_enqueues(app: App, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = made(app, "thread", linger)

    @app.task
    def first() -> None:
        task.enqueue(str(began), 0.1)

    await first.aenqueue()
    await in_a_burst(app)
    assert len(lines(began)) == 1


async def test_a_burst_runs_retries_that_are_due_soon(app: App) -> None:
    handle = await made(app, "async", act, retry="100ms").aenqueue("raise at first")
    await in_a_burst(app)
    assert (await ended(handle)).state is State.COMPLETED


async def test_a_burst_does_not_wait_for_a_paused_queue(app: App) -> None:
    handle = await made(app, "async", act).aenqueue("return")
    await app.store.settings("default", paused=True)
    await in_a_burst(app)
    assert await handle.astatus() is State.AVAILABLE


async def test_a_burst_serves_queues_with_slots_and_process_tasks_to_the_end(
    app: App, tmp_path: Path
) -> None:
    """Queues that are full for the moment are not empty."""
    from penstock.worker.queues import Queue

    single = made(app, "async", linger, queue="single")
    heavy = made(app, "process", act, queue="heavy")
    began = tmp_path / "began"
    await app.aenqueue_many([single.job(str(began), 0.01) for _ in range(20)])
    handles = [await heavy.aenqueue("return") for _ in range(6)]
    await in_a_burst(app, [Queue("single", slots=2), "heavy"], config=patient(process_slots=1))
    assert len(lines(began)) == 20
    for handle in handles:
        assert await handle.aresult(60) == "done in attempt 1"


async def test_a_burst_ends_while_another_worker_still_runs_a_job(app: App, tmp_path: Path) -> None:
    """What another holds is the other's: no burst waits for it."""
    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began), 0.5)
    async with at_work(app, config=patient()):
        await until(lambda: bool(lines(began)), "it has begun")
        await in_a_burst(app)
        assert await handle.astatus() is State.RUNNING
