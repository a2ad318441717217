"""Starts worker processes, starts them again when they die, and passes signals on to them.

The supervisor never imports user code: each child does, and says where its store is. What a child has in
hand stands in a table of shared memory, which outlives the child.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.config import Config
from penstock.core.duration import format_ms
from penstock.core.ids import mint
from penstock.maintenance.service import Complaint
from penstock.stores.connect import connect
from penstock.stores.contract import Store
from penstock.worker.exits import how_it_ended
from penstock.worker.locks import LivenessLock
from penstock.worker.logs import complain
from penstock.worker.process import AWAY, REFUSED, UNUSABLE, ChildHello, Death
from penstock.worker.queues import Queue
from penstock.worker.signals import DRAIN, listen, listen_for_stacks
from penstock.worker.supervisor.lease_keeper import LeaseKeeper
from penstock.worker.supervisor.lost_work import LostWork
from penstock.worker.supervisor.worker_process import WorkerProcess

__all__ = ["supervise"]

_log = logging.getLogger("penstock.supervisor")
_TICK = 0.05
#: A child that lived this long was healthy: its next death is not part of a series (s).
_HEALTHY = 30.0
#: A second signal means at once; a child that is still there after this long does not hear it (s).
_AT_ONCE = 3.0
#: How long a supervisor that is told to stop waits for a store that does not answer (s).
_LAST_WORDS = 3.0
#: A child is told of at most this many jobs that died with the one before it: they travel in its environment.
_TOLD_OF = 200
_NO_STORE = (UNUSABLE, AWAY)


def supervise(
    app: str,
    config: Config,
    *,
    queues: Sequence[Queue] | None = None,
    burst: bool = False,
) -> int:
    """Run `config.processes` workers of the app until told to stop; the exit code.

    0: all ended as asked. 1: a child had to be killed or died at the end. 78: the app cannot be served.
    74, 75: it could not be begun, for its store cannot be used, or is away for the moment.
    """
    supervisor = Supervisor(app, config, queues, burst)
    return asyncio.run(supervisor.run())


class Supervisor:
    """Runs `config.processes` worker processes; `run` returns the exit code."""

    def __init__(self, app: str, config: Config, queues: Sequence[Queue] | None, burst: bool) -> None:
        self._app = app
        self._config = config
        self._queues = tuple(queues) if queues is not None else None
        self._burst = burst
        self._id = mint()
        self._children: list[WorkerProcess] = []
        self._stopping = False
        self._stopped = asyncio.Event()
        self._resting = False
        self._stop_by = float("inf")
        self._code = 0
        self._told: set[str] = set()
        self._tells = False  # whether the app has listeners or callbacks
        self._store: Store | None = None
        self._store_hangs = False  # it was waited for in vain, and so it would be when it is closed
        self._complaint = Complaint(_log)
        self._keeper = LeaseKeeper(config, self._complaint)

    async def run(self) -> int:
        listen(self._told_to_stop, self._quiet, drain=DRAIN)
        listen_for_stacks(self._show_stacks)
        lock = LivenessLock(self._id)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                places = [group.create_task(self._keep_alive()) for _ in range(self._config.processes)]
                await asyncio.wait(places)
                watch.cancel()
        finally:
            lock.release()
            if self._store is not None and not self._store_hangs:
                self._store.close()
        if self._code in (0, 1):  # else it never began, and has said why
            _log.info("stopped (exit code %d)", self._code)
        return self._code

    # ── life and death of children ───────────────────────────────────────────────────────────────

    async def _keep_alive(self) -> None:
        """One place for a child: start it, and start it again when it dies."""
        failures, began = 0, False
        death: Death | None = None
        while not self._stopping:
            child = WorkerProcess(self._app, self._config, self._queues, self._burst, death)
            self._children.append(child)
            born = time.monotonic()
            code = await child.wait(self._said_hello)
            self._children.remove(child)
            asked = child.ended_as_asked(code)
            death = None if asked else await self._buried(child, code)
            child.close()
            if child.refusal is not None:
                self._complain(child.refusal)
            if code == REFUSED or (code in _NO_STORE and not began):
                self._code = code
                self._stop()
            began = began or code not in _NO_STORE
            if asked and code == 0 and self._burst:
                break  # nothing is left to do
            failures = 0 if asked or time.monotonic() - born > _HEALTHY else failures + 1
            if self._resting:
                await self._stopped.wait()
            elif not self._stopping and failures > 1:
                await self._unless_stopped(min(10.0, 0.1 * 2 ** min(failures, 7)))

    def _complain(self, why: str) -> None:
        """All children have the same trouble: it is told once."""
        if why not in self._told:
            self._told.add(why)
            complain(self._config, why)

    async def _unless_stopped(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _said_hello(self, hello: ChildHello) -> None:
        self._tells |= hello.tells
        if self._store is None and hello.url is not None and not hello.url.startswith("memory:"):
            self._store = connect(hello.url, namespace=hello.namespace)

    async def _buried(self, child: WorkerProcess, code: int) -> Death | None:
        """Take back at once what the dead child had in hand."""
        held = child.table.entries()
        cause = child.cause or how_it_ended(code, child.ooms_before)
        if child.refusal is not None and not held:
            return None
        _log.error("worker %s (pid %d) died: %s; %d job(s) in hand", child.id, child.pid, cause, len(held))
        lost = LostWork(
            child.id,
            held,
            child.overdue,
            cause,
            by=self._id,
            config=self._config,
            can_tell=self._can_tell,
            complaint=self._complaint,
        )
        if self._store is not None:
            await self._while_it_can(lost.take_back(self._store))
        if self._stopping:  # also where it was told to stop while it waited for the store
            self._code = self._code or 1
        return Death(child.id, cause, len(held), tuple(lost.dead[:_TOLD_OF]))

    def _can_tell(self) -> int | None:
        """How many deaths the next child can be told of; None: the app has no listeners and no callbacks."""
        if not self._tells:
            return None
        return 0 if self._stopping or self._resting else _TOLD_OF

    async def _while_it_can(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this; once we are to stop, only for so long: leases run out by themselves."""
        doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            done, _ = await asyncio.wait({doing}, timeout=_LAST_WORDS)
            self._store_hangs |= not done
        finally:
            doing.cancel()
            stopped.cancel()

    # ── while a child cannot speak for itself ────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Kill in time what must be killed. It waits for no store: what asks one is a task of its own."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(_TICK)
                for child in list(self._children):
                    try:
                        if self._store is not None:
                            self._keeper.look_after(self._store, child, group)
                    except Exception as error:  # noqa: BLE001  # boundary: our fault is not the children's
                        self._complaint.about(f"worker {child.id} cannot be looked after", error)
                if time.monotonic() > self._stop_by:
                    self._kill_all("it did not end within the drain time")

    # ── signals ──────────────────────────────────────────────────────────────────────────────────

    def _told_to_stop(self) -> None:
        count, drain = len(self._children), format_ms(self._config.drain_timeout)
        if self._stopping:
            _log.info("told again to stop: %d worker process(es) end at once", count)
        else:
            _log.info("told to stop: %d worker process(es) drain, for %s at most", count, drain)
        self._stop()

    def _stop(self) -> None:
        now, grace = time.monotonic(), self._config.kill_grace / 1000
        if self._stopping:
            self._stop_by = min(self._stop_by, now + min(grace, _AT_ONCE))
        else:
            self._stop_by = now + self._config.drain_timeout / 1000 + grace
        self._stopping = True
        self._stopped.set()
        for child in self._children:
            child.signal(signal.SIGTERM)  # a second one: at once

    def _quiet(self) -> None:
        """What runs goes on. Who is just starting has nothing to go on with, and would not hear it."""
        self._resting = True
        _log.info("%d worker process(es) fetch nothing more; what runs goes on", len(self._children))
        for child in self._children:
            child.signal(signal.SIGUSR1 if child.greeted else signal.SIGTERM)

    def _show_stacks(self) -> None:
        """Ours are shown already; one child after the other, for what is written at once is mixed.

        Who has just started cannot show its own: the signal would stop it.
        """
        loop = asyncio.get_running_loop()
        for nth, child in enumerate(child for child in self._children if child.greeted):
            loop.call_later(0.1 * nth, child.signal, signal.SIGTTIN)

    def _kill_all(self, cause: str) -> None:
        for child in self._children:
            child.kill(cause)
