"""A worker or producer is interrupted at any boundary of any store call, and another one completes the job.

It is cut off from the store for good, or cancelled, or told to stop. Its leftovers do not block the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from penstock.errors import StoreUnavailable
from penstock.verify.crash_points import Boundary
from penstock.worker import services
from tests.crash.conftest import Injection, TrialRunner, each_scenario
from tests.crash.scenario_run import LEASE, Impact, RunningWorker, Trial
from tests.crash.scenarios import Scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
]  # hundreds of scenarios, on a machine that may be busy


@dataclass(frozen=True)
class End:
    """How a worker comes to its end, and what that may cost."""

    does: Callable[[RunningWorker], object]
    impact: Impact
    is_cut_off: bool = False

    async def interrupt(self, trial: Trial, injection: Sequence[Injection]) -> None:
        """Run the scenario with this interruption, and with a second worker that continues."""
        ((who, point, _),) = injection
        trial.app(who)
        trial.impact = self.impact
        loop, thread, struck = asyncio.get_running_loop(), threading.current_thread(), asyncio.Event()

        def end() -> None:
            self.does(trial.hand)
            struck.set()

        def act() -> None:
            if self.is_cut_off:
                trial.points[who].cut_off()
                trial.ledger.fault("cut")
            if threading.current_thread() is thread:
                end()
            else:  # a heartbeat
                loop.call_soon_threadsafe(end)
            if self.is_cut_off and point.boundary is not Boundary.AFTER:
                raise StoreUnavailable("this worker is never heard of again")

        trial.points[who].at(point, act)
        await trial.live_on(struck, leap=LEASE if self.is_cut_off else 0)


ENDS = {
    "cut off": End(lambda hand: hand.run.cancel(), Impact.ATTEMPTS, is_cut_off=True),
    "cancelled": End(lambda hand: hand.run.cancel(), Impact.RUNS),
    "stopped": End(lambda hand: hand.worker.stop(), Impact.NOTHING),
}


@each_scenario
@pytest.mark.parametrize("end", ENDS.values(), ids=[name.replace(" ", "-") for name in ENDS])
async def test_where_a_worker_ends_another_goes_on(
    runner: TrialRunner, scenario: Scenario, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end.is_cut_off:  # nobody will hear its last words
        monkeypatch.setattr(services, "_LAST_ANSWERS", 0.05)
    points = [one for one in await runner.points(scenario) if one.who == "worker"]
    points = runner.some(f"ends of workers in {scenario.name}", points, 8)
    struck = await runner.run(scenario, [[one] for one in points], end.interrupt)
    assert len(struck) >= 0.6 * len(points)


@each_scenario
async def test_where_a_producer_is_cancelled_it_may_ask_again(
    runner: TrialRunner, scenario: Scenario
) -> None:
    async def asked_again(trial: Trial, injection: Sequence[Injection]) -> None:
        ((who, point, _),) = injection
        trial.app("worker")
        trial.points[who].at(point, lambda: trial.producing.cancel())
        await trial.live()

    points = [one for one in await runner.points(scenario) if one.who == "producer"]
    struck = await runner.run(scenario, [[one] for one in points], asked_again)
    assert len(struck) == len(points)
