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
from tests.crash.conftest import OF_JOBS, Injection, Stage, StageOf, each_life
from tests.crash.driver import Part
from tests.crash.scenario_run import Harmed, Scene
from tests.crash.scenarios import LIVES, Life

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

_ROOT = Path(__file__).resolve().parents[2]
#: A look that found nothing does not change what is there.
_CHANGE = OF_JOBS - {"wait", "get", "entries", "reclaim"}


class Cast:
    """A few processes that let others play."""

    def __init__(self) -> None:
        self._free: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
        #: How many were killed.
        self.died = 0

    async def play(self, part: Part) -> None:
        """Until it is played, or its player dead."""
        director = await self._free.get()
        assert director.stdin is not None
        assert director.stdout is not None
        director.stdin.write(msgspec.json.encode(part) + b"\n")
        status = int(await director.stdout.readline())
        self._free.put_nowait(director)
        assert status in (0, -signal.SIGKILL), f"{part} ended with {status}"
        self.died += status == -signal.SIGKILL

    @contextlib.asynccontextmanager
    async def ready(self, directors: int = 3) -> AsyncIterator[Cast]:
        pipe = asyncio.subprocess.PIPE
        there = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.crash.driver"), stdin=pipe, stdout=pipe, cwd=_ROOT
            )
            for _ in range(directors)
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
def lasting(request: pytest.FixtureRequest, stage_of: StageOf) -> Stage:
    """A store that outlives those who use it."""
    return stage_of(str(request.param))


def part_of(scene: Scene, injection: Injection) -> Part:
    return Part(
        kind=scene.kind,
        place=scene.place,
        folder=str(scene.folder),
        life=scene.life.name,
        who=injection.who,
        ahead=scene.clock.ahead,
        dies_at=str(injection.point),
        statement=injection.statement,
    )


async def played(scene: Scene, cast: Cast, injection: Injection) -> None:
    """The life up to where a process of its own is killed."""
    scene.harmed = Harmed.ATTEMPTS
    if injection.who == "worker":
        await scene.produce()
    await cast.play(part_of(scene, injection))


async def killed(scene: Scene, cast: Cast, injection: Injection) -> None:
    """The whole life: somebody else ends it."""
    await played(scene, cast, injection)
    if injection.who == "producer":
        await scene.produce()
    async with scene.worker("heir"):  # who sees that the other is dead, long before his leases run out
        await scene.over()


async def changes(stage: Stage, life: Life) -> list[Injection]:
    """Where in this life something is changed."""
    return [injection for injection in await stage.points(life) if injection.point.verb in _CHANGE]


@each_life
async def test_where_a_process_is_killed_another_goes_on(lasting: Stage, life: Life) -> None:
    life, cast = replace(life, worker_first=False), Cast()
    injections = await changes(lasting, life)
    if lasting.kind != "sqlite":
        injections = lasting.some(f"kills in {life.name}", injections, 12)
    async with cast.ready():
        await lasting.play(
            life, [[one] for one in injections], lambda scene, injection: killed(scene, cast, injection[0])
        )
    assert cast.died >= 0.8 * len(injections), "most of the places are there in every run"


async def test_a_transaction_that_is_killed_between_its_statements_never_was(stage_of: StageOf) -> None:
    """The first of which makes the tables: there one in four will do. What a verb has done is tried once."""
    cast, stage, seen, tried = Cast(), stage_of("sqlite"), set[tuple[str, str]](), 0

    async def places(life: Life, injection: Injection) -> AsyncIterator[Injection]:
        scene = stage.scene(life)
        await played(scene, cast, injection._replace(statement=-1))
        scene.close()
        ran = msgspec.json.decode((scene.folder / "statements.json").read_bytes(), type=list[str])
        for n, text in enumerate(ran, start=1):
            what = " ".join(re.sub(r"x?'[^']*'|\d+", "", text).split())[:80]
            makes_tables = what.startswith(("CREATE", "ALTER", "DROP"))
            if what.startswith(("SELECT", "BEGIN")) or (makes_tables and n % 4):
                continue
            if (injection.point.verb, what) not in seen:
                seen.add((injection.point.verb, what))
                yield injection._replace(statement=n)

    async with cast.ready():
        for life in [replace(one, worker_first=False) for one in LIVES.values()]:
            calls = [one for one in await changes(stage, life) if one.point.boundary is Boundary.BEFORE]
            injections = [[place] for call in calls async for place in places(life, call)]
            injections = stage.some(f"statements of {life.name}", injections, 15)
            tried += len(injections)
            await stage.play(life, injections, lambda scene, injection: killed(scene, cast, injection[0]))
    assert len(seen) > 50
    assert cast.died >= 0.5 * tried, "which statements a call has depends on who asks beside it, but for most"
