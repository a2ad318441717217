"""Checks running attempts at short intervals: timeouts, grace periods, jobs that found no slot."""

from __future__ import annotations

import time

from penstock.maintenance.service import Service
from penstock.worker.executor import Executor, Slots
from penstock.worker.heartbeat import Heartbeat

__all__ = ["AttemptWatch"]

#: New progress brings the next heartbeat forward at most this often (s).
_PROGRESS_EVERY = 0.25


class AttemptWatch(Service):
    """Calls `executor.watch` while attempts run or jobs wait for a slot; sleeps otherwise."""

    name = "watch"

    def __init__(self, executor: Executor, slots: Slots, heartbeat: Heartbeat) -> None:
        super().__init__()
        self._executor = executor
        self._slots = slots
        self._heartbeat = heartbeat
        self._progress_at = 0.0

    async def tick(self) -> float:
        executor, slots = self._executor, self._slots
        if not slots.running and not executor.admission.waiting:
            slots.started.clear()
            await slots.started.wait()
        now = time.monotonic()
        if now - self._progress_at > _PROGRESS_EVERY and executor.has_progress():
            self._progress_at = now
            self._heartbeat.send_now()
        if executor.admission.waiting:
            self._heartbeat.tick()
        return executor.watch()

    def stop(self) -> None:
        super().stop()
        self._slots.started.set()
