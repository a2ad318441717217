"""The tasks of flows that are left half done by one release and ended by another.

Both releases run this module. In the older one, `hold` holds a job at its place until its worker is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

from penstock import App, current_job
from penstock.errors import Discard
from penstock.workflows import current_flow, current_sync_flow

__all__ = ["HalfDone"]

#: The timers of the flows are still running when they are left.
NAP = "20s"


class HalfDone:
    """The tasks, and what their functions have done: pairs of a job and an act."""

    def __init__(self, app: App, *, held: Path | None = None) -> None:
        self.done: list[tuple[str, str]] = []
        self.tasks: dict[str, Any] = {}
        self._held = held
        functions: list[Any] = [
            *(self.steps, self.tries, self.unreadable, self.loop, self.cells, self.sleeps, self.waits),
            *(self.timed, self.unfit, self.branches, self.naps_in_branches, self.total),
            *(self.shown, self.gathers, self.adds, self.saga, self.in_thread),
        ]
        for function in functions:
            self._add(app, function.__name__, function)
        self._add(app, "leaf", self.leaf, retention="36500d")  # what is left stays, however old it is
        self._add(app, "undoes", self.undoes, retry=20.0)
        self._add(app, "ends_early", self.ends_early, max_attempts=1)
        versions = {"versioned": ("1", "1"), "other_version": ("1", "2"), "late_version": (None, "2")}
        for name, (older, newer) in versions.items():
            self._add(app, name, self._versioned(older if held else newer))

    def _add(self, app: App, name: str, function: Any, **options: Any) -> None:
        self.tasks[name] = app.task(name=f"half.{name}", **{"max_attempts": 3, **options})(function)

    @property
    def _older(self) -> bool:
        """Whether this is the release that leaves the flows half done."""
        return self._held is not None

    async def hold(self, what: str) -> None:
        """Hold a job at its place, in the older release."""
        if self._held is not None:
            with self._held.open("a") as file:
                file.write(f"{what}\n")
            await asyncio.Event().wait()

    def _act(self, what: str) -> str:
        self.done.append((current_job().id, what))
        return what

    def _take_back(self, what: str) -> None:
        self._act(f"undo {what}")

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    async def steps(self) -> list[str]:
        """Its worker is killed between its third step and its fourth; two steps have the same name."""
        flow = current_flow()
        found = [await flow.step("first", self._act, "first")]
        found += [await flow.step("send", self._act, one) for one in ("a", "b")]
        await self.hold("steps")
        return [*found, await flow.step("send", self._act, "c")]

    async def tries(self) -> str:
        """Its step has failed once, and the next try is not due."""

        def act() -> str:
            if self._older:
                raise ValueError("not yet")
            return self._act("acted")

        return await current_flow().step("act", act, attempts=3, retry_delay=NAP)

    async def unreadable(self) -> int:
        """The newer release has another type for the answer of its step."""

        def text() -> str:
            return "text"

        def number() -> int:
            raise AssertionError("the step is stored")

        flow = current_flow()
        found: Any = await flow.step("act", text if self._older else number)
        await flow.sleep(NAP)
        return int(found)

    # ── loops ────────────────────────────────────────────────────────────────────────────────────

    async def loop(self) -> list[str]:
        """It sleeps in its second item."""
        flow, found = current_flow(), []
        async for row in flow.iterate("rows", ["x", "y", "z"], every=0):
            found.append(await flow.step("handle", self._act, row))
            if row == "y":
                await flow.sleep(NAP)
        return [*found, await flow.step("send", self._act, "sent")]

    async def cells(self) -> list[str]:
        """Its worker is killed in the second cell of its second row."""
        flow, found = current_flow(), []
        async for row in flow.iterate("rows", ["x", "y"], every=0):
            async for cell in flow.iterate("cells", [1, 2], every=0):
                found.append(await flow.step("handle", self._act, f"{row}{cell}"))
                if (row, cell) == ("y", 2):
                    await self.hold("cells")
        return found

    # ── waits ────────────────────────────────────────────────────────────────────────────────────

    async def sleeps(self) -> list[str]:
        flow = current_flow()
        first = await flow.step("first", self._act, "first")
        await flow.sleep(NAP)
        return [first, await flow.step("last", self._act, "last")]

    def in_thread(self) -> list[str]:
        flow = current_sync_flow()
        first = flow.step("first", self._act, "first")
        flow.sleep(NAP)
        return [first, flow.step("last", self._act, "last")]

    async def waits(self, key: str) -> list[Any]:
        """It waits for a signal; one such job has received it, and has not run since."""
        flow = current_flow()
        first = await flow.step("first", self._act, "first")
        return [first, await flow.wait_for("packed", key=key, of=int)]

    async def timed(self) -> Any:
        """It waits for a signal that does not come."""
        return await current_flow().wait_for("never", timeout=NAP)

    async def unfit(self) -> int:
        """It has received a signal whose data the newer release cannot read."""
        found: int = await current_flow().wait_for("unfit", of=str if self._older else int)
        return found

    async def branches(self) -> list[Any]:
        flow = current_flow()

        async def branch(name: str) -> list[Any]:
            first = await flow.step(f"first of {name}", self._act, name)
            return [first, await flow.wait_for(name)]

        return list(await asyncio.gather(branch("left"), branch("right")))

    async def naps_in_branches(self) -> list[str]:
        """Branches without names of their own, whose naps the older release counts together."""
        flow = current_flow()

        async def branch(name: str) -> str:
            await flow.sleep(NAP)
            return await flow.step(f"after {name}", self._act, name)

        return list(await asyncio.gather(branch("left"), branch("right")))

    # ── jobs of its own ──────────────────────────────────────────────────────────────────────────

    async def leaf(self, n: int) -> int:
        if n == 1:
            await self.hold("leaf")
        return n

    async def total(self, values: list[int]) -> int:
        return sum(values)

    async def shown(self, value: list[str]) -> str:
        return " ".join(value)

    async def gathers(self, ids: list[str], at_once: bool = False) -> list[int]:
        """One of its jobs has ended, one is running, one is not due. `at_once`: the flow begins with them."""
        flow = current_flow()
        if not at_once:
            await flow.step("first", self._act, "first")
        given: list[Any] = [{"id": id} for id in ids] or [{}] * 3
        late = 20 if self._older else 0
        calls = [self.tasks["leaf"].using(**given[n], delay=late * (n == 2)).job(n) for n in range(3)]
        return list(await flow.gather(calls))

    async def adds(self) -> int:
        """It has added a member to its group."""
        flow = current_flow()
        await flow.add(self.tasks["leaf"].job(5))
        await flow.sleep(NAP)
        return 2

    # ── ends ─────────────────────────────────────────────────────────────────────────────────────

    async def saga(self) -> str:
        flow = current_flow()
        await flow.step("reserve", self._act, "reserve", undo=self._take_back)
        await flow.sleep(NAP)
        return await flow.step("charge", self._act, "charge", undo=self._take_back)

    async def undoes(self) -> NoReturn:
        """Of three steps one is undone; the next undo has failed, and is not due."""
        flow = current_flow()

        def take_back(what: str) -> None:
            if what == "charge" and self._older:
                raise ValueError("not yet")
            self._take_back(what)

        for name in ("reserve", "charge", "ship"):
            await flow.step(name, self._act, name, undo=take_back)
        raise Discard("sold out")

    async def ends_early(self) -> None:
        """Its last attempt has failed before its first step; its next run is to undo what is stored."""
        if self._older and current_job().job.checkpoint is not None:
            raise ValueError("the last attempt")
        flow = current_flow()
        await flow.step("reserve", self._act, "reserve", undo=self._take_back)
        await flow.sleep("5s")

    def _versioned(self, version: str | None) -> Callable[[], Awaitable[str]]:
        """A flow whose code says another version in the newer release."""

        async def versioned() -> str:
            flow = current_flow(version=version)
            await flow.step("first", self._act, "first")
            await flow.sleep(NAP)
            return await flow.step("last", self._act, "last")

        return versioned
