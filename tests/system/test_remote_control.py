"""Workers obey commands that are sent through the store, and are replaced at their limits."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from penstock.core.job import State
from penstock.inspector import BulkActs, BulkState, Inspector, JobAct, SentCommand
from penstock.stores.contract import JobFilter


def _tell(place, act: str, *ids: str) -> list[SentCommand]:
    """Tell workers, by default all, and return their replies."""
    workers = ids or [info.id for info in place.workers()]
    return asyncio.run(Inspector(place.app.store).tell_workers(workers, act, by="test", timeout=10.0))


def _says(told: list[SentCommand]) -> set[str]:
    return {one.reply.text if one.reply else "no reply" for one in told}


def test_workers_are_quieted_and_drained_with_all_processes_of_their_supervisor(place):
    worker = place.worker("--processes", "2", ready=2)
    running = place.tasks.held.enqueue("go")
    place.until_started(1)
    (told,) = _tell(place, "quiet", place.workers()[0].id)
    assert told.reply is not None
    assert told.reply.text == "fetches no more jobs, with all processes of its supervisor"
    place.until(lambda: {info.state for info in place.workers()} == {"quiet"}, "both are quiet")
    place.tasks.quick.enqueue(1)
    assert _says(_tell(place, "drain")) == {"drains, then ends, with all processes of its supervisor"}
    place.until(lambda: {info.state for info in place.workers()} == {"draining"}, "both drain")
    place.open("go")
    assert worker.wait() == 0
    assert place.jobs([running])[0].state is State.COMPLETED
    assert place.counts() == {State.COMPLETED: 1, State.AVAILABLE: 1}


def test_a_stopped_worker_releases_what_runs(place):
    worker = place.worker()
    running = place.tasks.held.enqueue("never")
    place.until_started(1)
    assert _says(_tell(place, "stop")) == {"ends at once, with all processes of its supervisor"}
    assert worker.wait(60) == 0
    assert place.jobs([running])[0].state is State.AVAILABLE


def test_the_stacks_of_running_jobs_are_reported(place):
    place.worker("--concurrency", "4")
    tasks = place.tasks
    handles = [function.enqueue("go") for function in (tasks.held, tasks.held_thread)]
    place.until_started(2)
    (told,) = _tell(place, "stacks")
    assert told.reply is not None
    report = told.reply.text
    for handle, function in zip(handles, ("held", "held_thread"), strict=True):
        _, _, part = report.partition(f"/{handle.id}, task ")
        assert f"in {function}\n" in part.partition("\n\n")[0], report
    assert "thread MainThread" in report
    place.open("go")
    place.until_ended(handles)


@pytest.mark.parametrize("limit", ["jobs", "memory"])
def test_a_worker_that_reaches_a_limit_is_replaced_without_a_gap(place, limit):
    option = {"jobs": ("--max-jobs-per-worker", "2"), "memory": ("--max-memory-per-worker", "1MB")}[limit]
    worker = place.worker("--concurrency", "2", *option)
    (first,) = place.workers()
    running = place.tasks.held.enqueue("go")
    place.until_ended([place.tasks.quick.enqueue(n) for n in range(3)])
    place.until(lambda: any(info.id != first.id for info in place.workers()), "its replacement serves")
    place.until(lambda: "draining" in {i.state for i in place.workers() if i.id == first.id}, "it drains")
    place.until_ended([place.tasks.quick.enqueue(9)])
    place.open("go")
    (job,) = place.until_ended([running])
    assert (job.state, job.attempt, job.lost) == (State.COMPLETED, 1, 0)
    place.until(lambda: first.id not in {info.id for info in place.workers()}, "the first one has ended")
    assert "died" not in worker.log


def test_a_worker_does_a_bulk_act_that_nobody_waits_for(place):
    place.worker()
    queued = [place.tasks.quick.using(delay="1h").enqueue(n) for n in range(5)]
    filter = JobFilter(states=(State.SCHEDULED,))
    acts = BulkActs(place.app.store)
    started = asyncio.run(acts.start(JobAct.RUN_NOW, filter, by="test"))
    place.until_ended(queued)
    place.until(lambda: asyncio.run(acts.get(started.id)).state is BulkState.DONE, "the act has ended")


def test_a_restart_whose_replacement_cannot_start_changes_nothing(place):
    worker = place.worker()
    (first,) = place.workers()
    (place.folder / "tasks.py").write_text("raise RuntimeError('broken release')\n")
    assert _says(_tell(place, "restart")) == {"drains when its replacement is ready, then ends"}
    place.until(lambda: "has not started" in worker.log, "the supervisor says that it failed")
    place.until_ended([place.tasks.quick.enqueue(1)])
    assert [info.id for info in place.workers()] == [first.id]


def test_a_stop_signal_leaves_a_replaced_process_its_drain_time(place):
    worker = place.worker("--drain-timeout", "20s")
    (first,) = place.workers()
    running = place.tasks.held.enqueue("go")
    place.until_started(1)
    _tell(place, "restart")
    place.until(lambda: "draining" in {i.state for i in place.workers() if i.id == first.id}, "it drains")
    worker.signal(signal.SIGTERM)
    place.until(lambda: {info.id for info in place.workers()} == {first.id}, "its replacement has ended")
    place.open("go")
    assert worker.wait(60) == 0
    (job,) = place.jobs([running])
    assert (job.state, job.attempt) == (State.COMPLETED, 1)


def test_a_replacement_that_dies_is_replaced_while_its_predecessor_drains(place):
    place.worker("--drain-timeout", "20s")
    (first,) = place.workers()
    running = place.tasks.held.enqueue("go")
    place.until_started(1)
    _tell(place, "restart")
    place.until(lambda: "draining" in {i.state for i in place.workers() if i.id == first.id}, "it drains")
    (second,) = [info for info in place.workers() if info.id != first.id]
    os.kill(second.pid, signal.SIGKILL)
    place.until_ended([place.tasks.quick.enqueue(1)])
    assert place.jobs([running])[0].state is State.RUNNING
    place.open("go")
    place.until_ended([running])


def test_a_release_whose_startup_fails_replaces_nobody(place):
    worker = place.worker("--processes", "2", ready=2)
    before = {info.id for info in place.workers()}
    with (place.folder / "tasks.py").open("a") as file:
        file.write("\n\n@app.on_startup\ndef broken(app):\n    raise SystemExit(78)\n")
    _tell(place, "restart", min(before))
    place.until(lambda: "has not started" in worker.log, "the supervisor says that it failed")
    place.until_ended([place.tasks.quick.enqueue(1)])
    assert {info.id for info in place.workers()} == before
