"""A store that fails once or twice at any boundary of any call: no job is lost, and none is completed twice.

Only the producer needs to know about the failure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.crash.conftest import OF_JOBS, Injection, TrialRunner, each_scenario, faults, pairs
from tests.crash.scenario_run import Trial, until
from tests.crash.scenarios import SCENARIOS, Scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
]  # hundreds of scenarios, on a machine that may be busy


#: How many pairs of faults of each scenario are tried in memory, others each time. All: CRASH_ALL=1.
PAIRS = 100


async def with_faults(trial: Trial, injection: Sequence[Injection]) -> None:
    trial.app("worker")
    for one in injection:
        trial.points[one.who].at(one.point)
        trial.faults += [one.point] if one.who == "producer" else []
    await trial.live()


@each_scenario
async def test_one_fault_anywhere_changes_nothing(runner: TrialRunner, scenario: Scenario) -> None:
    points = faults(await runner.points(scenario))
    points = runner.some(f"faults of {scenario.name}", points, 40 if runner.kind == "redis" else 20)
    struck = await runner.run(scenario, [[one] for one in points], with_faults)
    assert len(struck) >= 0.8 * len(points), "most of the places are there in every run"


@each_scenario
async def test_nor_do_any_two(runner: TrialRunner, scenario: Scenario) -> None:
    points = [
        injection for injection in faults(await runner.points(scenario)) if injection.point.verb in OF_JOBS
    ]
    twos = runner.some(f"pairs of faults of {scenario.name}", pairs(points), 15, in_memory=PAIRS)
    struck = await runner.run(scenario, twos, with_faults)
    assert struck.total() >= 1.5 * len(twos), "most of both are there in every run"


async def test_a_trial_leaves_no_file_open(runner: TrialRunner) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    await runner.points(SCENARIOS["retried"])  # opens what all stores of a process share
    before = open_files()
    trials = 4
    for _ in range(trials):
        await runner.points(SCENARIOS["retried"])
    # connections are closed by the next rounds of the loop; one to a trial that is not, stays for good
    await until(lambda: open_files() < before + trials)
