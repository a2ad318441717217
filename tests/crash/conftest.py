"""Runs scenarios on every store, many at a time, each with its own store."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from msgspec.structs import replace

from penstock.app import app_settings
from penstock.verify.crash_points import Boundary, Point
from tests import servers
from tests.crash.scenario_run import Trial
from tests.crash.scenarios import SCENARIOS, Scenario

T = TypeVar("T")


class Injection(NamedTuple):
    """Where a fault is injected: the process, the point, and the SQL statement of a call (0: none)."""

    who: str
    point: Point
    statement: int = 0

    def __str__(self) -> str:
        return f"{self.who} {self.point}" + (f", statement {self.statement}" if self.statement else "")


#: Verbs that a worker calls for itself, or again and again while nothing happens: their first calls will do.
_FIRST_CALLS = 2
_ANY_CALLS = 6
_IDLE = {"wait", "promote", "reclaim", "workers", "announce", "prune", "entries", "get"}
#: A fault in one of these can touch a job.
OF_JOBS = {"enqueue", "settings", "promote", "fetch", "extend", "settle", "reclaim", "wait", "get"} | {
    *("put_entries", "entries", "tick")
}
#: Which of many places are tried where not all are; 0: a new seed each time, which is printed.
SEED = int(os.environ.get("CRASH_SEED", "0"))
#: Whether all places are tried on each store: `CRASH_ALL=1 pytest tests/crash`.
ALL = os.environ.get("CRASH_ALL", "") not in ("", "0")
#: How many scenarios run at a time; most of their time is waiting.
_BESIDE = 12


RunnerOf = Callable[[str], "TrialRunner"]

each_scenario = pytest.mark.parametrize(
    "scenario", SCENARIOS.values(), ids=[name.replace(" ", "-") for name in SCENARIOS]
)


class TrialRunner:
    """Runs scenarios on stores of one kind."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind = kind
        self.home = home
        self._numbers = itertools.count()

    def trial(self, scenario: Scenario) -> Trial:
        """A new one, on a store of its own."""
        number = next(self._numbers)
        folder = self.home / str(number)
        folder.mkdir()
        return Trial(scenario, self.kind, self.place(number), folder)

    def place(self, number: int) -> str:
        """The address of the store for the trial with this number."""
        match self.kind:
            case "memory":
                return f"{self.home.name}.{number}"
            case "sqlite":
                return str(self.home / str(number) / "jobs.db")
        shared = servers.SHARED_CLUSTER if self.kind == "redis-cluster" else servers.SHARED_REDIS
        return f"{shared.get().url}?prefix={self.home.name}.{number}&timeout=60s"

    async def points(self, scenario: Scenario) -> list[Injection]:
        """All points that a scenario passes without faults, with their processes."""
        trial = self.trial(scenario)
        await trial.live()
        await trial.check()
        trial.close()
        return [
            Injection(who, point)
            for who, points in trial.points.items()
            for point in dict.fromkeys(points.passed)
            if point.call <= (_FIRST_CALLS if point.verb in _IDLE else _ANY_CALLS)
        ]

    def some(self, what: str, places: Sequence[T], most: int, *, in_memory: int | None = None) -> list[T]:
        """At most this many, drawn by a seed that is printed. In memory `in_memory` of them; None: all."""
        limit = in_memory if self.kind == "memory" else most
        if ALL or limit is None or len(places) <= limit:
            return list(places)
        seed = SEED or random.SystemRandom().randrange(1_000_000)
        print(f"{what} on {self.kind}: {limit} of {len(places)}, CRASH_SEED={seed}")
        return random.Random(seed).sample(places, limit)

    async def run(
        self,
        scenario: Scenario,
        injections: Sequence[Sequence[Injection]],
        act: Callable[[Trial, Sequence[Injection]], Awaitable[None]],
    ) -> Counter[str]:
        """Play the scenario once with each of these injections; how often each point was struck.

        `act` is the coroutine function that lets it happen. Every failure of a promise names its injections.
        """
        struck: Counter[str] = Counter()
        broken: list[str] = []
        room = asyncio.Semaphore(_BESIDE)

        async def one(injection: Sequence[Injection]) -> None:
            async with room:
                trial = self.trial(scenario)
                try:
                    await act(trial, injection)
                    await trial.check()
                except Exception:
                    named = " and ".join(map(str, injection))
                    broken.append(
                        f"{scenario.name} on {self.kind}, impact at {named}: {traceback.format_exc()}"
                    )
                finally:
                    struck.update(
                        str(Injection(who, p)) for who, points in trial.points.items() for p in points.struck
                    )
                    trial.close()
                    shutil.rmtree(trial.folder, ignore_errors=True)

        await asyncio.gather(*map(one, injections))
        assert not broken, (
            f"{len(broken)} of {len(injections)} scenarios ended badly; the first: " + "\n".join(broken[:3])
        )
        return struck


def faults(points: Sequence[Injection]) -> list[Injection]:
    """Where a call can fail: before it was sent, and when its reply is lost."""
    return [injection for injection in points if injection.point.boundary is not Boundary.AFTER]


def pairs(points: Sequence[Injection]) -> list[tuple[Injection, Injection]]:
    """Any two that can both be struck: of different calls, be the second one the first one made again."""
    found = [
        (one, other)
        for one, other in itertools.combinations(points, 2)
        if (one.who, one.point.verb, one.point.call) != (other.who, other.point.verb, other.point.call)
    ]
    last: dict[tuple[str, str], int] = {}
    for who, point, _ in points:
        last[who, point.verb] = max(point.call, last.get((who, point.verb), 0))
    for one in points:
        if one.point.call == last[one.who, one.point.verb]:  # else its repetition is among the points
            for boundary in (Boundary.BEFORE, Boundary.LOST):
                repeated = replace(one.point, call=one.point.call + 1, boundary=boundary)
                found.append((one, one._replace(point=repeated)))
    return found


@pytest.fixture
def home() -> Iterator[Path]:
    """In memory where the machine has such a file system."""
    shared = Path("/dev/shm")
    parent = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="penstock-crash-", dir=parent))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def runner_of(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunnerOf]:
    """Makes a runner for a kind of store, with its own directory of liveness locks."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    # thousands of apps, all with the settings of this environment
    monkeypatch.setattr(app_settings, "load", functools.cache(app_settings.load))
    caplog.set_level(logging.CRITICAL)  # a worker says much about a store that fails
    yield lambda kind: TrialRunner(kind, home)
    for shared in (servers.SHARED_REDIS, servers.SHARED_CLUSTER):
        if isinstance(shared.started, servers.RedisServer):
            servers.remove_keys([shared.started], having=home.name)
        elif shared.started:
            servers.remove_keys(shared.started.servers, having=home.name)


@pytest.fixture(params=["memory", "sqlite", "redis", "redis-cluster"])
def runner(request: pytest.FixtureRequest, runner_of: RunnerOf) -> TrialRunner:
    """Each store."""
    return runner_of(str(request.param))
