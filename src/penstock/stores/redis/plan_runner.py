"""Run the call plans of verbs: send the calls that a plan yields, and send it their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.core import forks
from penstock.stores.contract import Wake
from penstock.stores.redis.context import CallPlan, Context, int_or_zero
from penstock.stores.redis.verbs import news
from penstock.stores.redis.wire.async_runner import AsyncRunner, SyncRunner

__all__ = ["NewsCounts", "PlanRunner", "SeenNews"]

R = TypeVar("R")


class NewsCounts(tuple[int, int]):
    """The number of requests to stop and of changes of settings so far."""

    def told_by(self, later: tuple[int, int]) -> Wake:
        """Return the flags for which a wait that knew these counts is woken by later ones."""
        wake = Wake.NOTHING
        if later[0] > self[0]:
            wake |= Wake.CANCEL
        if later[1] > self[1]:
            wake |= Wake.SETTINGS
        return wake


class SeenNews:
    """The counts that the waits of a store object have reported; None before its first verb."""

    def __init__(self) -> None:
        self.seen: NewsCounts | None = None
        self._lock = forks.lock()

    @property
    def now(self) -> NewsCounts:
        assert self.seen is not None
        return self.seen

    def begin(self, answer: Sequence[bytes | None]) -> None:
        """Set the baseline at the first verb: earlier events are never reported."""
        with self._lock:
            if self.seen is None:
                self.seen = NewsCounts(map(int_or_zero, answer))

    def tell(self, counts: tuple[int, int]) -> None:
        """Store the counts that a wait has reported; if several waits end at once, the highest stay."""
        with self._lock:
            self.seen = NewsCounts(map(max, zip(self.now, counts, strict=True)))


class PlanRunner:
    """Runs call plans from event loops (`run`) and from threads (`run_sync`)."""

    def __init__(self, runner: AsyncRunner, sync_runner: SyncRunner, context: Context) -> None:
        self._runner = runner
        self._sync_runner = sync_runner
        self.context = context
        self.news = SeenNews()

    async def run(self, plan: CallPlan[R]) -> R:
        """Run a plan and return its answer."""
        if self.news.seen is None:
            await self.begin()
        return await self._send(plan)

    async def begin(self) -> None:
        """Read the counts at the first verb."""
        self.news.begin(await self._send(news.begin(self.context)))

    async def _send(self, plan: CallPlan[R]) -> R:
        try:
            calls = next(plan)
            while True:
                calls = plan.send(await self._runner.run(calls))
        except StopIteration as end:
            result: R = end.value
            return result

    def run_sync(self, plan: CallPlan[R]) -> R:
        """Run a plan in this thread and return its answer."""
        if self.news.seen is None:
            self.news.begin(self._send_sync(news.begin(self.context)))
        return self._send_sync(plan)

    def _send_sync(self, plan: CallPlan[R]) -> R:
        try:
            calls = next(plan)
            while True:
                calls = plan.send(self._sync_runner.run(calls))
        except StopIteration as end:
            result: R = end.value
            return result
