"""Jobs of flows whose results cannot be read now do not hold up others."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import Job, NewJob, State
from penstock.worker.executor import flow_inputs
from penstock.worker.executor.flow_inputs import FlowInputs


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

    monkeypatch.setattr(flow_inputs, "with_inputs", with_inputs)
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
