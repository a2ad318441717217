"""Run the call plans of verbs: send the calls that a plan yields, and send it their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.core import forks
from penstock.stores.own_store import WakeCounts
from penstock.stores.redis.context import CallPlan, Context, int_or_zero
from penstock.stores.redis.verbs import waiting
from penstock.stores.redis.wire.async_runner import AsyncRunner
from penstock.stores.redis.wire.sync_runner import SyncRunner

R = TypeVar("R")


class SeenWakeCounts:
    """The counts that the waits of a store object have reported; None before its first verb."""

    def __init__(self) -> None:
        self.seen: WakeCounts | None = None
        self._lock = forks.lock()

    @property
    def now(self) -> WakeCounts:
        assert self.seen is not None
        return self.seen

    def begin(self, answer: Sequence[bytes | None]) -> None:
        """Set the baseline at the first verb: earlier events are never reported."""
        with self._lock:
            if self.seen is None:
                self.seen = WakeCounts(*map(int_or_zero, answer))

    def update(self, counts: WakeCounts) -> None:
        """Store the counts that a wait has reported; if several waits end at once, the highest stay."""
        with self._lock:
            self.seen = self.now.highest(counts)


class PlanRunner:
    """Runs call plans from event loops (`run`) and from threads (`run_sync`)."""

    def __init__(self, runner: AsyncRunner, sync_runner: SyncRunner, context: Context) -> None:
        self._runner = runner
        self._sync_runner = sync_runner
        self.context = context
        self.wake_counts = SeenWakeCounts()

    async def run(self, plan: CallPlan[R]) -> R:
        """Run a plan and return its answer."""
        if self.wake_counts.seen is None:
            await self.begin()
        return await self._send(plan)

    async def begin(self) -> None:
        """Read the counts at the first verb."""
        self.wake_counts.begin(await self._send(waiting.begin(self.context)))

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
        if self.wake_counts.seen is None:
            self.wake_counts.begin(self._send_sync(waiting.begin(self.context)))
        return self._send_sync(plan)

    def _send_sync(self, plan: CallPlan[R]) -> R:
        try:
            calls = next(plan)
            while True:
                calls = plan.send(self._sync_runner.run(calls))
        except StopIteration as end:
            result: R = end.value
            return result
