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
from tests.crash.conftest import Injection, Stage, each_life
from tests.crash.scenario_run import LEASE, Hand, Harmed, Scene
from tests.crash.scenarios import Life

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # hundreds of lives, on a machine that may be busy


@dataclass(frozen=True)
class End:
    """How a worker comes to its end, and what that may cost."""

    does: Callable[[Hand], object]
    harmed: Harmed
    is_cut_off: bool = False

    async def befalls(self, scene: Scene, injection: Sequence[Injection]) -> None:
        """The life in which that happens at this point, and somebody else goes on."""
        ((who, point, _),) = injection
        scene.app(who)
        scene.harmed = self.harmed
        loop, thread, struck = asyncio.get_running_loop(), threading.current_thread(), asyncio.Event()

        def end() -> None:
            self.does(scene.hand)
            struck.set()

        def act() -> None:
            if self.is_cut_off:
                scene.points[who].cut_off()
                scene.ledger.fault("cut")
            if threading.current_thread() is thread:
                end()
            else:  # a heartbeat
                loop.call_soon_threadsafe(end)
            if self.is_cut_off and point.boundary is not Boundary.AFTER:
                raise StoreUnavailable("this worker is never heard of again")

        scene.points[who].at(point, act)
        await scene.live_on(struck, leap=LEASE if self.is_cut_off else 0)


ENDS = {
    "cut off": End(lambda hand: hand.run.cancel(), Harmed.ATTEMPTS, is_cut_off=True),
    "cancelled": End(lambda hand: hand.run.cancel(), Harmed.RUNS),
    "stopped": End(lambda hand: hand.worker.stop(), Harmed.NOTHING),
}


@each_life
@pytest.mark.parametrize("end", ENDS.values(), ids=[name.replace(" ", "-") for name in ENDS])
async def test_where_a_worker_ends_another_goes_on(
    stage: Stage, life: Life, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end.is_cut_off:  # nobody will hear its last words
        monkeypatch.setattr(services, "_LAST_ANSWERS", 0.05)
    points = [one for one in await stage.points(life) if one.who == "worker"]
    points = stage.some(f"ends of workers in {life.name}", points, 8)
    struck = await stage.play(life, [[one] for one in points], end.befalls)
    assert len(struck) >= 0.6 * len(points)


@each_life
async def test_where_a_producer_is_cancelled_it_may_ask_again(stage: Stage, life: Life) -> None:
    async def asked_again(scene: Scene, injection: Sequence[Injection]) -> None:
        ((who, point, _),) = injection
        scene.app("worker")
        scene.points[who].at(point, lambda: scene.producing.cancel())
        await scene.live()

    points = [one for one in await stage.points(life) if one.who == "producer"]
    struck = await stage.play(life, [[one] for one in points], asked_again)
    assert len(struck) == len(points)
