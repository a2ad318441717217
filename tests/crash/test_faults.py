"""A store that fails once or twice at any boundary of any call: no job is lost, and none is completed twice.

Only the producer needs to know about the failure.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.crash.conftest import OF_JOBS, Injection, Stage, each_life, faults, pairs
from tests.crash.scenario_run import Scene
from tests.crash.scenarios import Life

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # hundreds of lives, on a machine that may be busy


async def with_faults(scene: Scene, injection: Sequence[Injection]) -> None:
    scene.app("worker")
    for one in injection:
        scene.points[one.who].at(one.point)
        scene.faults += [one.point] if one.who == "producer" else []
    await scene.live()


@each_life
async def test_one_fault_anywhere_changes_nothing(stage: Stage, life: Life) -> None:
    points = faults(await stage.points(life))
    if stage.kind == "redis-cluster":
        points = stage.some(f"faults of {life.name}", points, 20)
    struck = await stage.play(life, [[one] for one in points], with_faults)
    assert len(struck) >= 0.8 * len(points), "most of the places are there in every run"


@each_life
async def test_nor_do_any_two(stage: Stage, life: Life) -> None:
    points = [injection for injection in faults(await stage.points(life)) if injection.point.verb in OF_JOBS]
    twos = stage.some(f"pairs of faults of {life.name}", pairs(points), 15)
    struck = await stage.play(life, twos, with_faults)
    assert struck.total() >= 1.5 * len(twos), "most of both are there in every run"
