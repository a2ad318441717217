"""The crash tests detect faults that are planted on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.app import deciding
from penstock.core.ids import mint_token
from penstock.errors import StoreError
from penstock.stores.contract import Settlement
from penstock.verify.crash_points import Point
from penstock.worker import services
from penstock.worker.executor.settler import Settler
from penstock.worker.fetcher import Fetcher
from penstock.worker.leased_jobs import LeasedJob
from tests.crash import scenario_run
from tests.crash.conftest import Injection, RunnerOf, TrialRunner
from tests.crash.scenarios import SCENARIOS
from tests.crash.test_faults import with_faults
from tests.crash.test_interruptions import ENDS

pytestmark = pytest.mark.slow

SCENARIO = SCENARIOS["at most once"]


@pytest.fixture
def memory(runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch) -> TrialRunner:
    """Where what never happens is not waited for for long."""
    monkeypatch.setattr(scenario_run, "PATIENCE", 1.0)
    return runner_of("memory")


def at(point: str) -> list[list[Injection]]:
    return [[Injection("worker", Point.of(point))]]


async def test_a_fetch_that_is_repeated_with_another_token(
    memory: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = Fetcher.tick

    async def forgets(self: Fetcher) -> float:
        self._token = mint_token()
        return await tick(self)

    await memory.run(SCENARIO, at("fetch:2:lost"), with_faults)
    monkeypatch.setattr(Fetcher, "tick", forgets)
    with pytest.raises(AssertionError, match=r"(?s)fetch:2:lost.*TimeoutError"):
        await memory.run(SCENARIO, at("fetch:2:lost"), with_faults)


async def test_an_outcome_that_is_sent_once(memory: TrialRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgets(self: Settler, batch: list[LeasedJob], settlements: list[Settlement]) -> None:
        try:
            await self._store.settle(settlements)
        except StoreError:
            pass
        for leased in batch:
            self._leased_jobs.remove(leased)

    await memory.run(SCENARIO, at("settle:1:before"), with_faults)
    monkeypatch.setattr(Settler, "_send", forgets)
    with pytest.raises(AssertionError, match=r"(?s)settle:1:before.*TimeoutError"):
        await memory.run(SCENARIO, at("settle:1:before"), with_faults)


async def test_an_at_most_once_job_that_is_tried_again(
    memory: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_LAST_ANSWERS", 0.05)
    decided = deciding.decided

    def forgets(job: Any, *args: Any, **options: Any) -> Any:
        return decided(
            replace(job, spec=replace(job.spec, at_most_once=False, max_attempts=2)), *args, **options
        )

    injections: Sequence[Sequence[Injection]] = at("settle:1:before")
    await memory.run(SCENARIO, injections, ENDS["cut off"].interrupt)
    monkeypatch.setattr(deciding, "decided", forgets)
    with pytest.raises(AssertionError, match="at most once: job payment in scenario: the job started again"):
        await memory.run(SCENARIO, injections, ENDS["cut off"].interrupt)
