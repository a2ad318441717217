"""A process is killed at any boundary of any call, or between two statements of a transaction.

Another process completes the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from penstock.verify.crash_points import Boundary
from tests.crash.conftest import OF_JOBS, Injection, RunnerOf, TrialRunner, each_scenario
from tests.crash.driver import ProcessPlan
from tests.crash.scenario_run import Impact, Trial
from tests.crash.scenarios import SCENARIOS, Scenario

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

_ROOT = Path(__file__).resolve().parents[2]
#: A look that found nothing does not change what is there.
_CHANGE = OF_JOBS - {"wait", "get", "entries", "reclaim"}


class Drivers:
    """A few processes that let others play."""

    def __init__(self) -> None:
        self._free: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
        #: How many were killed.
        self.died = 0

    async def run(self, plan: ProcessPlan) -> None:
        """Until it is played, or its player dead."""
        driver = await self._free.get()
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(msgspec.json.encode(plan) + b"\n")
        status = int(await driver.stdout.readline())
        self._free.put_nowait(driver)
        assert status in (0, -signal.SIGKILL), f"{plan} ended with {status}"
        self.died += status == -signal.SIGKILL

    @contextlib.asynccontextmanager
    async def ready(self, processes: int = 3) -> AsyncIterator[Drivers]:
        pipe = asyncio.subprocess.PIPE
        there = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.crash.driver"), stdin=pipe, stdout=pipe, cwd=_ROOT
            )
            for _ in range(processes)
        ]
        for one in there:
            self._free.put_nowait(one)
        try:
            yield self
        finally:
            for one in there:
                assert one.stdin is not None
                one.stdin.close()
                await one.wait()


@pytest.fixture(params=["sqlite", "redis"])
def durable(request: pytest.FixtureRequest, runner_of: RunnerOf) -> TrialRunner:
    """A store that outlives those who use it."""
    return runner_of(str(request.param))


def plan_of(trial: Trial, injection: Injection) -> ProcessPlan:
    return ProcessPlan(
        kind=trial.kind,
        place=trial.place,
        folder=str(trial.folder),
        scenario=trial.scenario.name,
        who=injection.who,
        ahead=trial.clock.ahead,
        dies_at=str(injection.point),
        statement=injection.statement,
    )


async def run_process(trial: Trial, drivers: Drivers, injection: Injection) -> None:
    """Run the scenario up to the kill of its separate process."""
    trial.impact = Impact.ATTEMPTS
    if injection.who == "worker":
        await trial.produce()
    await drivers.run(plan_of(trial, injection))


async def killed(trial: Trial, drivers: Drivers, injection: Injection) -> None:
    """Run the whole scenario: another process completes it."""
    await run_process(trial, drivers, injection)
    if injection.who == "producer":
        await trial.produce()
    async with trial.worker("heir"):  # who sees that the other is dead, long before his leases run out
        await trial.over()


async def changes(runner: TrialRunner, scenario: Scenario) -> list[Injection]:
    """The points of this scenario whose calls change the store."""
    return [injection for injection in await runner.points(scenario) if injection.point.verb in _CHANGE]


@each_scenario
async def test_where_a_process_is_killed_another_goes_on(durable: TrialRunner, scenario: Scenario) -> None:
    scenario, drivers = replace(scenario, worker_first=False), Drivers()
    injections = await changes(durable, scenario)
    if durable.kind != "sqlite":
        injections = durable.some(f"kills in {scenario.name}", injections, 12)
    async with drivers.ready():
        await durable.run(
            scenario,
            [[one] for one in injections],
            lambda trial, injection: killed(trial, drivers, injection[0]),
        )
    assert drivers.died >= 0.8 * len(injections), "most of the places are there in every run"


async def test_a_transaction_that_is_killed_between_its_statements_never_was(runner_of: RunnerOf) -> None:
    """The first of which makes the tables: there one in four will do. What a verb has done is tried once."""
    drivers, runner, seen, tried = Drivers(), runner_of("sqlite"), set[tuple[str, str]](), 0

    async def places(scenario: Scenario, injection: Injection) -> AsyncIterator[Injection]:
        trial = runner.trial(scenario)
        await run_process(trial, drivers, injection._replace(statement=-1))
        trial.close()
        ran = msgspec.json.decode((trial.folder / "statements.json").read_bytes(), type=list[str])
        for n, text in enumerate(ran, start=1):
            what = " ".join(re.sub(r"x?'[^']*'|\d+", "", text).split())[:80]
            makes_tables = what.startswith(("CREATE", "ALTER", "DROP"))
            if what.startswith(("SELECT", "BEGIN")) or (makes_tables and n % 4):
                continue
            if (injection.point.verb, what) not in seen:
                seen.add((injection.point.verb, what))
                yield injection._replace(statement=n)

    async with drivers.ready():
        for scenario in [replace(one, worker_first=False) for one in SCENARIOS.values()]:
            calls = [one for one in await changes(runner, scenario) if one.point.boundary is Boundary.BEFORE]
            injections = [[place] for call in calls async for place in places(scenario, call)]
            injections = runner.some(f"statements of {scenario.name}", injections, 15)
            tried += len(injections)
            await runner.run(
                scenario, injections, lambda trial, injection: killed(trial, drivers, injection[0])
            )
    assert len(seen) > 50
    assert drivers.died >= 0.5 * tried, (
        "which statements a call has depends on who asks beside it, but for most"
    )
