"""The world outside of the store: what a program has done there, and what it has seen."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from penstock.core.errors import StoreUnavailable

__all__ = ["ITEMS_ADDED", "Killed", "Planned", "Run", "World", "Wrapped", "running"]

#: How many items are added to the rows of a loop while it runs.
ITEMS_ADDED = 2


class Planned(Exception):
    """A failure that the program has planned."""


class Wrapped(Exception):
    """What the code of a program makes of a planned failure."""


class Killed(StoreUnavailable):
    """This run was killed: whatever it still does, no one sees it."""


class Run:
    """One run of a program, by one worker."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.dead = False
        self.hanging: dict[str, asyncio.Event] = {}
        self.limits: dict[str, asyncio.Timeout] = {}
        self.died = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None


#: The run whose code this is.
running: ContextVar[Run] = ContextVar("run_of_a_program")


class World:
    """What one job of a program does outside of the store, over all its runs.

    An *effect* is one call of a step's function, by the place where the program calls it.
    """

    def __init__(self, job: str, *, seed: int = 0) -> None:
        self.job = job
        self.run: Run | None = None
        self.runs = 0
        self.calls: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()  # of calls, that the store has
        self.plan: dict[str, int] = {}
        self.open: Counter[str] = Counter()  # calls of this run whose outcome the store does not have
        #: Calls that come once more: a kill came before the store had the outcome.
        self.excused: Counter[str] = Counter()
        #: Calls that come once more: the attempt has ended with what cut the step off, or with its failure.
        self.repeated: Counter[str] = Counter()
        self.hung: Counter[str] = Counter()
        self.seen: dict[str, Any] = {}
        self.wrong: list[str] = []
        self.reached: dict[str, None] = {}
        self.current: ContextVar[str] = ContextVar("place", default="")
        self.undone: list[str] = []
        self.signals: dict[str, str] = {}  # key of each signal that was asked for: when it is sent
        self.names: dict[str, str] = {}
        self.lists: dict[str, list[float]] = {}
        self.failing = False  # the flow is being undone
        self.dice = random.Random(seed)
        self._lock = threading.Lock()

    # ── runs ──

    def begin(self, run: Run) -> None:
        """The function begins, in a new run."""
        self.runs += 1
        self.run = run
        self.open.clear()
        running.set(run)

    def lose(self, run: Run) -> None:
        """A kill: nothing that this run does counts from here on."""
        run.dead = True
        self.excused.update(self.open)
        if run.loop is not None:
            run.loop.call_soon_threadsafe(run.died.set)

    def settle(self, place: str) -> None:
        """The store has the outcome of the call of this place."""
        calls = self.open.pop(place, 0)
        if self.run is not None and self.run.dead:  # it was on its way to the store
            self.excused[place] -= calls
        self.outcomes[place] += calls

    def _alive(self) -> Run:
        run = running.get(None) or self.run
        assert run is not None
        if run.dead:
            raise Killed("killed")
        return run

    # ── what the program's code says ──

    def at(self, place: str) -> str:
        """The operation of this place is called next."""
        self.current.set(place)
        self.reached.setdefault(place)
        return place

    def saw(self, place: str, value: Any) -> None:
        """The operation of this place has answered. Its answer is the same in every run."""
        if value is None:
            value = "none"
        self._alive()
        if self.seen.setdefault(place, value) != value:
            self.wrong.append(f"{place} answered {self.seen[place]!r}, and later {value!r}")

    def fails(self, place: str, times: int) -> str:
        """So many calls of this place fail."""
        self.plan[place] = times
        return place

    def signal(self, name: str, place: str, when: str) -> str:
        """The key of the signal with this name of this place, which is sent at this time."""
        self.at(place)
        key = f"{self.job}:{place}"
        self.names[key] = name
        self.signals.setdefault(key, when)
        return key

    def random(self) -> float:
        """Another number at each call."""
        return random.random()

    def shuffled(self, place: str, items: int) -> list[int]:
        """These items, in another order each time."""
        found = list(range(items))
        self.dice.shuffle(found)
        return found

    def rows(self, place: str, items: int) -> Any:
        """A source for a loop whose list grows between runs, behind the cursor."""
        rows = self.lists.setdefault(place, [float(n) for n in range(items)])

        def source(after: float | None) -> Iterator[tuple[float, float]]:
            begin = -1.0 if after is None else after
            if (after is not None or self.runs > 1) and not self.failing:
                left = [row for row in rows if row > begin]
                if left and len(rows) < items + ITEMS_ADDED:
                    rows.append((begin + left[0]) / 2)
                    rows.sort()
            return iter([(row, row) for row in rows if row > begin])

        return source

    # ── functions of steps ──

    def call(self, place: str, *rest: Any) -> str:
        """An effect; it returns its place, or fails as planned."""
        self._alive()
        with self._lock:
            self.calls[place] += 1
            self.open[place] += 1
            fails = self.outcomes[place] < self.plan.get(place, 0)
        if fails:
            raise Planned(f"planned failure of {place}")
        return place

    async def acall(self, place: str, *rest: Any) -> str:
        """As `call`, with awaits around it."""
        await asyncio.sleep(0)
        value = self.call(place)
        await asyncio.sleep(0)
        return value

    def other(self, place: str, *rest: Any) -> str:
        """As `call`, with another name."""
        return self.call(place)

    async def hang(self, place: str) -> str:
        """An effect that does not end by itself."""
        run = self._alive()
        self.call(place)
        self.hung[place] += 1
        run.hanging.setdefault(place, asyncio.Event()).set()
        limit = run.limits.get(place)
        if limit is not None:
            limit.reschedule(asyncio.get_running_loop().time())
        await run.died.wait()
        raise Killed("killed")

    def undo(self, place: str) -> None:
        """The undo of the step of this place."""
        self._alive()
        self.undone.append(place)

    # ── asyncio ──

    def timeout(self, place: str) -> asyncio.Timeout:
        """`asyncio.timeout` that is over when the function of this place hangs."""
        limit = self._alive().limits[place] = asyncio.timeout(None)
        return limit

    async def hangs(self, place: str, task: asyncio.Task[Any]) -> None:
        """Until the function of this place hangs, or the task has ended."""
        event = self._alive().hanging.setdefault(place, asyncio.Event())
        hanging = asyncio.create_task(event.wait())
        try:
            await asyncio.wait({hanging, task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()  # else it would hang on
            raise
        finally:
            hanging.cancel()

    def jobs(self, place: str, size: int, *, given: bool = False, fails: bool = False) -> list[Any]:
        """The jobs of a gather. The worker's world makes them."""
        raise NotImplementedError
