"""Enqueues until it is told to stop: `python -m penstock.verify.workload.producer SEED RATE`."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from penstock.client.handle import Handle
from penstock.client.job_call import JobCall
from penstock.core.errors import EnqueueManyError, PenstockError
from penstock.core.job import State
from penstock.verify.run_folder import OWNER
from penstock.verify.workload import tasks
from penstock.verify.workload.load import PlannedJob, draw

__all__ = ["Producer", "main"]

_log = logging.getLogger("penstock.verify.workload.producer")
#: So often it looks how many jobs are due (s).
_INTERVAL = 0.05
#: Of a second that it could not enqueue so much is made up for, at most.
_MOST_OWED = 100
#: While so many jobs wait nobody adds to them; looked at so often (s).
_BACKLOG, _LOOK_EVERY = 1_000, 0.5

#: How often planned for a queue that is away are tried all the same.
_AWAY_SHARE = 0.02


class Producer:
    """Draws planned, enqueues them one by one or many at once, and takes some back later."""

    def __init__(self, seed: str, rate: float) -> None:
        self._rng = random.Random(seed)  # noqa: S311 (chaos by lot, no secret)
        # its own: how many jobs are due at a time is up to the machine, and must not change which they are
        self._call_rng = random.Random(f"{seed}/ways")  # noqa: S311 (chaos by lot, no secret)
        self._rate = rate
        self._number = itertools.count()
        self._later: list[tuple[float, int, str, Handle[Any]]] = []
        self._looked, self._backlogged = float("-inf"), False
        self._away: set[str] = set()  # queues that nobody serves now
        self.stop = threading.Event()

    def run(self) -> None:
        """Until `stop` is set, or the run is gone."""
        owner = os.environ.get(OWNER, str(os.getppid()))
        owed, last = 0.0, time.monotonic()
        while not self.stop.wait(_INTERVAL) and str(os.getppid()) == owner:
            now = time.monotonic()
            if self._is_backlogged(now):
                last = now
                continue
            owed, last = min(owed + (now - last) * self._rate, _MOST_OWED), now
            planned = self.next_jobs(int(owed))
            owed -= len(planned)
            try:
                self.enqueue(self._possible(planned))
                self._run_follow_ups(now)
            except PenstockError as error:  # the store is away: whoever enqueues tries again later
                _log.warning("%s: %s", type(error).__name__, error)

    def _is_backlogged(self, now: float) -> bool:
        """Whether so much waits that how long a job takes would tell of the queue, not of the store."""
        if now - self._looked >= _LOOK_EVERY:
            self._looked = now
            try:
                queues = tasks.app.store.sync.queues()
            except PenstockError:  # it is away: enqueueing finds out the same, and writes it down
                self._backlogged = False
            else:
                self._away = {info.name for info in queues if info.away}
                self._backlogged = sum(info.counts.get(State.AVAILABLE, 0) for info in queues) > _BACKLOG
        return self._backlogged

    def _possible(self, planned: list[PlannedJob]) -> list[PlannedJob]:
        """Those whose queue is there, and only now and then the others: each call with one of those takes as
        long as a call may, and the healthy queues' jobs would wait behind it."""
        if not self._away or self._call_rng.random() < _AWAY_SHARE:
            return planned
        return [one for one in planned if one.call.new().queue not in self._away]

    def next_jobs(self, n: int) -> list[PlannedJob]:
        """So many more: which they are is up to the seed alone."""
        return [draw(self._rng, tasks) for _ in range(n)]

    def enqueue(self, planned: list[PlannedJob]) -> None:
        """All at once, or in two parts; from an event loop now and then."""
        cut = self._call_rng.randint(0, len(planned)) if self._call_rng.random() < 0.3 else 0
        for part in (planned[:cut], planned[cut:]):
            if part:
                self._enqueue(part, in_loop=self._call_rng.random() < 0.1)

    def _enqueue(self, planned: list[PlannedJob], *, in_loop: bool) -> None:
        calls: list[JobCall[Any]] = [one.call for one in planned]
        handles: Sequence[Handle[Any] | None]
        try:
            if in_loop:
                handles = asyncio.run(tasks.app.aenqueue_many(calls))
            else:
                handles = tasks.app.enqueue_many(calls)
        except EnqueueManyError as error:
            _log.warning("%s", error)
            handles = error.handles
        for one, handle in zip(planned, handles, strict=True):
            if one.verb and handle is not None:
                due = time.monotonic() + one.after
                heapq.heappush(self._later, (due, next(self._number), one.verb, handle))

    def _run_follow_ups(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            _, _, verb, handle = heapq.heappop(self._later)
            if handle.queue in self._away:
                heapq.heappush(self._later, (now + 1.0, next(self._number), verb, handle))
            elif verb == "cancel":
                handle.cancel()
            else:
                handle.reschedule(delay=0.5)


def main(seed: str, rate: str) -> None:
    """The whole life of the process."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    producer = Producer(seed, float(rate))
    signal.signal(signal.SIGTERM, lambda *_: producer.stop.set())
    _log.info("enqueues %s jobs/s from the seed %s", rate, seed)
    producer.run()
    tasks.app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
