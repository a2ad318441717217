"""Raw jobs of a queue go to its handler, with any task name; and jobs can be taken without a worker."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.app.app import App
from penstock.core.job import RawJob, State
from penstock.errors import Discard
from tests.worker import process_tasks
from tests.worker.conftest import at_work, becomes, ended, in_a_burst, quick
from tests.worker.task_bodies import act, made


async def test_a_raw_handler_gets_every_job_of_its_queue_with_its_bytes(app: App) -> None:
    got: list[RawJob] = []

    @app.handler(queue="legacy")
    async def handle(job: RawJob) -> str:
        got.append(job)
        return job.task

    first = await app.aenqueue_raw("legacy", b"\x00 raw", "whatever", headers={"trace": "42"}, retention="1h")
    second = await app.aenqueue_raw("legacy", b'{"a": 1}', retention="1h")
    await in_a_burst(app)
    assert await first.aresult(60) == "whatever"
    assert await second.aresult(60) == ""
    by_id = {job.id: job for job in got}
    raw = by_id[first.id]
    assert (raw.queue, raw.task, raw.payload, raw.attempt) == ("legacy", "whatever", b"\x00 raw", 1)
    assert raw.headers == {"trace": "42"}
    assert by_id[second.id].json() == {"a": 1}


async def test_a_plain_function_handles_them_in_a_thread(app: App) -> None:
    import threading

    names: list[str] = []

    @app.handler(queue="legacy")
    def handle(job: RawJob) -> None:
        names.append(threading.current_thread().name)

    await app.aenqueue_raw("legacy", b"x")
    await in_a_burst(app)
    assert names[0].startswith("penstock-thread")


@pytest.mark.system
async def test_a_process_may_handle_them_too(app: App) -> None:
    app.handler(queue="raw", run_in="process")(process_tasks.raw)
    handle = await app.aenqueue_raw("raw", b"x", "name", retention="1h")
    await in_a_burst(app)
    assert await handle.aresult(60) == "name 1 b'x'"


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_its_failures_are_as_those_of_tasks(app: App, in_a_thread: bool) -> None:
    def fail(job: RawJob) -> None:
        if job.payload == b"discard":
            raise Discard("no use")
        raise ValueError("it is wrong")

    async def fail_async(job: RawJob) -> None:
        fail(job)

    chosen: Any = fail if in_a_thread else fail_async
    app.handler(queue="legacy", retry="1h")(chosen)
    dead = await app.aenqueue_raw("legacy", b"discard")
    again = await app.aenqueue_raw("legacy", b"x")
    await in_a_burst(app)
    assert (await ended(dead)).reason == "Discard: no use"
    job = await becomes(again, State.RETRYABLE)
    assert [e.message for e in job.errors] == ["it is wrong"]


async def test_a_queue_with_a_handler_parks_nothing(app: App) -> None:
    ran: list[str] = []

    @app.handler(queue="legacy")
    async def handle(job: RawJob) -> None:
        ran.append(job.task)

    for name in ("one", "two", "three"):
        await app.aenqueue_raw("legacy", b"x", name)
    await in_a_burst(app)
    assert sorted(ran) == ["one", "three", "two"]


# ── taking jobs beside a worker ──────────────────────────────────────────────────────────────────


async def test_a_job_may_be_taken_while_a_worker_runs(app: App) -> None:
    task = made(app, "async", act)
    pulled = task.using(queue="pulled")
    async with at_work(app, ["default"], config=quick()):
        mine, its = await pulled.aenqueue("return"), await task.aenqueue("return")
        async with app.take("pulled", wait=5) as job:
            assert job is not None
            assert job.id == mine.id
            assert job.kwargs == {"how": "return"} or job.args == ("return",)
            job.returns("by hand")
        assert await mine.aresult(60) == "by hand"
        assert await its.aresult(60) == "done in attempt 1"


async def test_worker_and_take_share_a_queue_and_each_job_goes_to_one_of_them(app: App) -> None:
    ran: list[int] = []
    taken: list[int] = []

    @app.task
    async def work(i: int) -> None:
        ran.append(i)

    async with at_work(app, concurrency=2, config=quick()):
        handles = await app.aenqueue_many([work.job(i) for i in range(200)])
        while True:
            async with app.take("default", wait=0) as job:
                if job is None:
                    break
                taken.append(dict(job.kwargs).get("i", -1) if job.kwargs else job.args[0])
        assert await app.adrained("default", timeout=60)
    assert sorted(ran + taken) == list(range(len(handles)))
