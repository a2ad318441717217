"""Slots that are all held by jobs that wait for others: the log and `why` say so at once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.inspector import Inspector
from penstock.worker import Queue, Worker
from tests.worker.conftest import at_work, becomes, patient, until
from tests.worker.task_bodies import act, await_result, made


def stalled(worker: Worker) -> tuple[str, ...]:
    return worker.info().stalled_queues


async def test_jobs_that_wait_for_their_children_in_all_slots_are_named(
    app: App, run_in: str, url: str, caplog: Any
) -> None:
    if run_in == "process" and url.startswith("memory"):
        pytest.skip("a child process has a memory of its own")
    caplog.set_level(logging.WARNING)
    child = made(app, "async", act)
    waits = made(app, run_in, await_result, retry="1h")
    parents = [await waits.aenqueue(url, f"child{n}") for n in range(2)]
    children = [await child.using(id=f"child{n}", delay="1h").aenqueue("return") for n in range(2)]
    async with at_work(app, concurrency=2, config=patient(process_slots=2)) as worker:
        await until(lambda: stalled(worker) == ("default",), "both wait")
        await children[0].areschedule(delay=0)

        async def said() -> bool:
            (view,) = await Inspector(app.store).why("child0")
            return [one.kind for one in view.reasons] == ["busy", "stalled"]

        await until(said, "the job that is waited for says why it does not run")
        assert "2 jobs (" in caplog.text
        assert "in slots wait for results of jobs of the queue default" in caplog.text
        assert "enqueue the children as a flow" in caplog.text
        await children[0].acancel()
        await becomes(parents[0], State.RETRYABLE)
        await until(lambda: not stalled(worker), "a slot is free")
        await children[1].areschedule(delay=0)
        assert await parents[1].aresult(10) == "done in attempt 1"
    assert caplog.text.count("in slots wait for results") == 1


async def test_a_queue_of_one_slot_whose_job_waits_for_another_of_it(app: App, url: str) -> None:
    waits, child = made(app, "thread", await_result), made(app, "async", act)
    parent = await waits.aenqueue(url, "child")
    handle = await child.using(id="child", delay="1h").aenqueue("return")
    queues = [Queue("default", slots=1)]
    async with at_work(app, queues, concurrency=5, config=patient()) as worker:
        await until(lambda: stalled(worker) == ("default",), "its only slot waits")
        await parent.acancel()
        await handle.acancel()


@pytest.mark.parametrize("other", ["a free slot", "a queue of another worker", "a job that does not wait"])
async def test_a_wait_that_another_slot_can_end_is_not_named(app: App, url: str, other: str) -> None:
    waits, child = made(app, "async", await_result), made(app, "async", act)
    parent = await waits.aenqueue(url, "child")
    queue = "elsewhere" if other == "a queue of another worker" else "default"
    handle = await child.using(id="child", queue=queue, delay="1h").aenqueue("return")
    if other == "a job that does not wait":
        from tests.worker.task_bodies import linger

        busy = await made(app, "async", linger).aenqueue("/dev/null")
    slots = 1 if other == "a queue of another worker" else 2
    async with at_work(app, ["default"], concurrency=slots, config=patient()) as worker:
        assert worker._services is not None
        attempts = worker._services.slots.attempts
        await until(lambda: any(one.awaits for one in attempts), "it waits")
        worker._services.executor.watch()
        assert stalled(worker) == ()
        await parent.acancel()
        await handle.acancel()
        if other == "a job that does not wait":
            await busy.acancel()
    assert await handle.astatus() is State.CANCELLED
