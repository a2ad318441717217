"""Enqueues jobs and flows until SIGTERM.

Usage: `python -m penstock.verify.workload.producer SEED RATE FLOW_SHARE [PROCESS_SHARE]`.
"""

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

import msgspec

from penstock.client.handle import Handle
from penstock.client.job_call import JobCall
from penstock.core.errors import EnqueueManyError, PenstockError
from penstock.core.ids import mint
from penstock.core.job import State
from penstock.verify.ledger.facts import FlowExpected, timestamp
from penstock.verify.run_folder import OWNER
from penstock.verify.workload import tasks
from penstock.verify.workload.flow_load import PlannedFlow, draw_flow
from penstock.verify.workload.load import OF_FLOWS, PlannedJob, draw
from penstock.workflows import FlowHandle

_log = logging.getLogger("penstock.verify.workload.producer")
#: Interval between two enqueue rounds (s).
_INTERVAL = 0.05
#: After an outage at most this many jobs are caught up.
_MOST_OWED = 100
#: Producers pause while more jobs than this are available; and how often they check (s).
_BACKLOG, _LOOK_EVERY = 1_000, 0.5

#: Probability of enqueueing jobs of unavailable queues anyway.
_AWAY_SHARE = 0.02
#: The queues of the jobs of flows.
_QUEUES_OF_FLOWS = frozenset({"flows", "main", "slow"})
#: Retention of completed flows: longer than a worker's clock is wrong.
_FLOWS_KEPT = "1d"


class Producer:
    """Draws jobs, enqueues them in one or two calls, and later cancels or reschedules some of them."""

    def __init__(
        self, seed: str, rate: float, process_share: float | None = None, flow_share: float = 0.0
    ) -> None:
        self._rng = random.Random(seed)  # noqa: S311 (chaos by lot, no secret)
        # a second generator: the number of jobs per round depends on the machine, and must not change the
        # jobs
        self._call_rng = random.Random(f"{seed}/ways")  # noqa: S311 (chaos by lot, no secret)
        self._flow_rng = random.Random(f"{seed}/flows")  # noqa: S311 (chaos by lot, no secret)
        self._rate = rate
        self._process_share = process_share
        self._flow_share = flow_share if all(map(tasks.app.store.can, OF_FLOWS)) else 0.0
        self._number = itertools.count()
        self._later: list[tuple[float, int, str, Handle[Any] | FlowHandle[Any]]] = []
        self._looked, self._backlogged = float("-inf"), False
        self._away: set[str] = set()  # queues whose shard is away
        self.stop = threading.Event()

    def run(self) -> None:
        """Enqueue until `stop` is set or the conductor has ended."""
        owner = os.environ.get(OWNER, str(os.getppid()))
        owed, last = 0.0, time.monotonic()
        while not self.stop.wait(_INTERVAL) and str(os.getppid()) == owner:
            now = time.monotonic()
            if self._is_backlogged(now):
                last = now
                continue
            owed, last = min(owed + (now - last) * self._rate, _MOST_OWED), now
            flows = self.next_flows(int(owed))
            planned = self.next_jobs(int(owed) - len(flows))
            owed -= int(owed)
            try:
                self.enqueue(self._possible(planned))
                self._enqueue_flows(flows)
                self._run_follow_ups(now)
            except PenstockError as error:  # the store is away: the next round continues
                _log.warning("%s: %s", type(error).__name__, error)

    def _is_backlogged(self, now: float) -> bool:
        """Whether so many jobs wait that start times would measure the queue instead of the store."""
        if now - self._looked >= _LOOK_EVERY:
            self._looked = now
            try:
                queues = tasks.app.store.sync.queues()
            except PenstockError:  # the store is away: the enqueue fails too, and records it
                self._backlogged = False
            else:
                self._away = {info.name for info in queues if info.away}
                self._backlogged = sum(info.counts.get(State.AVAILABLE, 0) for info in queues) > _BACKLOG
        return self._backlogged

    def _possible(self, planned: list[PlannedJob]) -> list[PlannedJob]:
        """The jobs whose queue is available, and only rarely the others.

        A call with a job of an unavailable queue takes until its timeout, which delays jobs of healthy
        queues.
        """
        if not self._away or self._call_rng.random() < _AWAY_SHARE:
            return planned
        return [one for one in planned if one.call.new().queue not in self._away]

    def next_jobs(self, n: int) -> list[PlannedJob]:
        """Draw the next n jobs; they depend on the seed alone."""
        return [draw(self._rng, tasks, self._process_share) for _ in range(n)]

    def next_flows(self, n: int) -> list[PlannedFlow]:
        """Draw the flows among the next n orders; they depend on the seed alone."""
        rng = self._flow_rng
        return [draw_flow(rng) for _ in range(n) if rng.random() < self._flow_share]

    def enqueue(self, planned: list[PlannedJob]) -> None:
        """Enqueue these jobs in one or two calls, now and then from an event loop."""
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

    def _enqueue_flows(self, planned: list[PlannedFlow]) -> None:
        if self._away & _QUEUES_OF_FLOWS and self._call_rng.random() >= _AWAY_SHARE:
            return
        for one in planned:
            id, result = mint(), "" if one.result is None else msgspec.json.encode(one.result).decode()
            tasks.ledger.write(FlowExpected(*timestamp(), id, one.shape, one.ends, result))
            how: dict[str, Any] = {"id": id, "policy": one.policy, "retention": _FLOWS_KEPT}
            if self._call_rng.random() < 0.1:
                handle = asyncio.run(one.canvas.aenqueue(**how))
            else:
                handle = one.canvas.enqueue(**how)
            if one.cancel_after is not None:
                due = time.monotonic() + one.cancel_after
                heapq.heappush(self._later, (due, next(self._number), "cancel", handle))

    def _run_follow_ups(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            _, _, verb, handle = heapq.heappop(self._later)
            if handle.queue in self._away:
                heapq.heappush(self._later, (now + 1.0, next(self._number), verb, handle))
            elif verb == "cancel" or isinstance(handle, FlowHandle):
                handle.cancel()
            else:
                handle.reschedule(delay=0.5)


def main(seed: str, rate: str, flow_share: str, process_share: str = "") -> None:
    """Run the producer until SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    share = float(process_share) if process_share else None
    producer = Producer(seed, float(rate), share, float(flow_share))
    signal.signal(signal.SIGTERM, lambda *_: producer.stop.set())
    _log.info("enqueues %s jobs/s from the seed %s", rate, seed)
    producer.run()
    tasks.app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
