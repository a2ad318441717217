"""Jobs of flows whose results cannot be read now do not hold up others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import Job, NewJob, State
from penstock.worker.executor import admission
from penstock.worker.executor.admission import FlowInputs
from penstock.worker.executor.executor import AttemptWatch
from penstock.worker.executor.slots import Slots


class _Leased:
    """What the service uses of a leased job."""

    def __init__(self, id: str) -> None:
        self.job = Job(NewJob(id, "t"), State.RUNNING)


async def test_a_job_whose_flow_is_away_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    away = {"first"}

    async def with_inputs(store: object, job: Job) -> Job:
        if job.id in away:
            raise StoreUnavailable("its home is away")
        return job

    monkeypatch.setattr(admission, "with_inputs", with_inputs)
    ready: list[str] = []
    store: Any = None
    service = FlowInputs(store, lambda leased: ready.append(leased.job.id), lambda *_: None)
    for name in ("first", "second", "third"):
        leased: Any = _Leased(name)
        service.read(leased)
    with pytest.raises(StoreUnavailable):
        await service.tick()
    assert ready == ["second", "third"]
    away.clear()
    await service.tick()
    assert ready == ["second", "third", "first"]


async def test_while_results_are_read_the_worker_marks_that_its_event_loop_runs() -> None:
    # else its supervisor releases the job as stuck, and all results are read again
    leased_jobs: Any = None
    leased: Any = _Leased("body")
    slots = Slots(1, 1, leased_jobs)
    marked = asyncio.Event()
    heartbeat: Any = None
    loop_monitor: Any = SimpleNamespace(tick=marked.set, set_idle=lambda _: None)
    executor: Any = SimpleNamespace(
        admission=SimpleNamespace(waiting=False), has_progress=lambda: False, watch=lambda: 3_600.0
    )
    watch = AttemptWatch(executor, slots, heartbeat, loop_monitor)
    running = asyncio.create_task(watch.tick())
    await asyncio.sleep(0)
    executor.admission.waiting = True
    slots.reserve(leased)
    await asyncio.wait_for(marked.wait(), 60)
    await running
