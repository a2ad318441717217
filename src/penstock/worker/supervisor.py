"""Keeps worker processes alive, speaks for them while they cannot, and takes their work back when they die.

It never imports user code: each child does, and says where its store is. What a child has in hand stands
in a table of shared memory, which outlives the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from penstock.config import Config
from penstock.core import clock
from penstock.core.duration import format_ms
from penstock.core.errors import StoreError
from penstock.core.ids import mint
from penstock.core.job import Job, Lease, Ref, State
from penstock.core.lifecycle import LOST_BY, Place, Transition, released
from penstock.core.text import number
from penstock.maintenance.reclaimer import reclaim_all
from penstock.maintenance.service import Complaint
from penstock.stores.connect import connect
from penstock.stores.contract import Beat, Grip, Settlement, Store
from penstock.worker.exits import how_it_ended, oom_kills
from penstock.worker.locks import LifeLock, bury
from penstock.worker.logs import complain
from penstock.worker.process import (
    AWAY,
    ORDERS,
    REFUSED,
    REPLACE,
    UNUSABLE,
    Death,
    Hello,
    Orders,
    Refusal,
    Said,
)
from penstock.worker.queues import Queue
from penstock.worker.shared_lease_table import Entry, LeaseTable
from penstock.worker.signals import DRAIN, listen, listen_for_stacks

__all__ = ["supervise"]

_log = logging.getLogger("penstock.supervisor")
_TICK = 0.05
#: How often a child's table is read while its loop comes round (ns).
_LOOK_NS = 1_000_000_000
#: A child that lived this long was healthy: its next death is not part of a series (s).
_HEALTHY = 30.0
#: A second signal means at once; a child that is still there after this long does not hear it (s).
_AT_ONCE = 3.0
#: A child is killed so much later than it may be (ns): it may just be giving up what does not react.
_SLACK_NS = 250_000_000
#: When it is told to stop, it waits so long for a store that does not answer (s).
_LAST_WORDS = 3.0
#: A child hears of so many jobs that died with the one before it: they travel in its environment.
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
    supervisor = _Supervisor(app, config, queues, burst)
    return asyncio.run(supervisor.run())


class _Supervisor:
    def __init__(self, app: str, config: Config, queues: Sequence[Queue] | None, burst: bool) -> None:
        self._app = app
        self._config = config
        self._queues = tuple(queues) if queues is not None else None
        self._burst = burst
        self._id = mint()
        self._children: list[_Child] = []
        self._stopping = False
        self._stopped = asyncio.Event()
        self._resting = False
        self._stop_by = float("inf")
        self._code = 0
        self._told: set[str] = set()
        self._tells = False  # whether the app has listeners or callbacks
        #: A child's loop that is silent for longer does not start what it has fetched ahead (s). Its loop
        #: says so every 20 ms while something waits, and every third of `block_report` otherwise.
        self._slot_wait = max(0.08, config.slot_wait / 1000 + 0.03)
        self.store: Store | None = None
        self._store_hangs = False  # it was waited for in vain, and so it would be when it is closed
        self._complaint = Complaint(_log)

    async def run(self) -> int:
        listen(self._told_to_stop, self._quiet, drain=DRAIN)
        listen_for_stacks(self._show_stacks)
        lock = LifeLock(self._id)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                places = [group.create_task(self._keep_alive()) for _ in range(self._config.processes)]
                await asyncio.wait(places)
                watch.cancel()
        finally:
            lock.release()
            if self.store is not None and not self._store_hangs:
                self.store.close()
        if self._code in (0, 1):  # else it never began, and has said why
            _log.info("stopped (exit code %d)", self._code)
        return self._code

    # ── life and death of children ───────────────────────────────────────────────────────────────

    async def _keep_alive(self) -> None:
        """One place for a child: start it, and start it again when it dies."""
        failures, began = 0, False
        death: Death | None = None
        while not self._stopping:
            child = _Child(self._app, self._config, self._queues, self._burst, death)
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

    def _said_hello(self, hello: Hello) -> None:
        self._tells |= hello.tells
        if self.store is None and hello.url is not None and not hello.url.startswith("memory:"):
            self.store = connect(hello.url, namespace=hello.namespace)

    async def _buried(self, child: _Child, code: int) -> Death | None:
        """Take back at once what the dead child had in hand."""
        held = child.table.entries()
        cause = child.cause or how_it_ended(code, child.ooms_before)
        if child.refusal is not None and not held:
            return None
        _log.error("worker %s (pid %d) died: %s; %d job(s) in hand", child.id, child.pid, cause, len(held))
        dead: list[tuple[str, str]] = []
        if self.store is not None:
            await self._while_it_can(self._taken_back(self.store, child, held, cause, dead))
        if self._stopping:  # also where it was told to stop while it waited for the store
            self._code = self._code or 1
        return Death(child.id, cause, len(held), tuple(dead[:_TOLD_OF]))

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

    async def _taken_back(
        self, store: Store, child: _Child, held: list[Entry], cause: str, dead: list[tuple[str, str]]
    ) -> None:
        begun = {e.lease: e.started for e in held}
        own: dict[Ref, Lease] = {}

        def started(job: Job) -> bool:
            lease = own.get(job.ref)
            if lease is None:
                return True  # it was to judge another's attempt, of which its table knows nothing
            return begun.get(lease, job.started)

        def overdue(job: Job) -> str | None:
            return child.overdue.get((job.queue, job.id))

        def judged(job: Job, move: Transition) -> None:
            if move.state is State.DEAD:  # the next child tells of these
                dead.append((job.queue, job.id))

        deaths = 0

        def leave(move: Transition) -> bool:
            # listeners and callbacks are the app's: without a next child to tell, a worker must judge these
            nonlocal deaths
            if move.state is not State.DEAD or not self._tells:
                return False
            deaths += 1
            return self._stopping or self._resting or deaths > _TOLD_OF

        for pause in (0.05, 0.2, 1.0, 5.0, None):
            try:
                own |= await _own_attempts(store, child.id)
                await reclaim_all(
                    store,
                    child.id,
                    self._id,
                    self._config.lease,
                    "WorkerLost",
                    cause,
                    started=started,
                    overdue=overdue,
                    keep_dead=self._config.keep_dead,
                    on_judged=judged,
                    leave=leave,
                )
                await store.retire(child.id)
                bury(child.id)
                return
            except StoreError as error:
                self._complaint.about(f"the work of worker {child.id} cannot be taken back yet", error)
                if pause is None:
                    return  # its leases run out by themselves
                await asyncio.sleep(pause)
            except Exception as error:  # noqa: BLE001  # boundary: our fault is not the children's
                self._complaint.about(f"the work of worker {child.id} cannot be taken back", error)
                return

    # ── while a child cannot speak for itself ────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Kill in time what must be killed. It waits for no store: what asks one is a task of its own."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(_TICK)
                for child in list(self._children):
                    try:
                        self._look_after(child, group)
                    except Exception as error:  # noqa: BLE001  # boundary: our fault is not the children's
                        self._complaint.about(f"worker {child.id} cannot be looked after", error)
                if time.monotonic() > self._stop_by:
                    self._kill_all("it did not end within the drain time")

    def _look_after(self, child: _Child, group: asyncio.TaskGroup) -> None:
        now = time.monotonic_ns()
        header = child.table.header()
        if header.pid == 0 or self.store is None:
            return
        blocked = (now - header.loop_ns) / 1e9
        if blocked < self._slot_wait and now - child.looked_ns < _LOOK_NS:
            return
        child.looked_ns = now
        held = child.table.entries()
        self._kill_the_overdue(child, held, now)
        if child.speaking is not None and not child.speaking.done():
            return  # the store takes its time
        silent = (now - header.beat_ns) / 1e9
        every = self._config.heartbeat / 1000
        beats = held if silent > every * 1.4 and (now - child.spoke_ns) / 1e9 > every else []
        back: list[Entry] = []
        if blocked > self._slot_wait:
            unbegun_for = self._config.lease / 1000 - self._slot_wait
            fetched_before = int((clock.lease_seconds() + unbegun_for) * 1e9)
            back = child.table.revoke([e for e in held if not e.started and e.until_ns < fetched_before])
        if beats or back:
            child.spoke_ns = now if beats else child.spoke_ns
            child.speaking = group.create_task(self._speak_for(child, beats, silent, back))

    async def _speak_for(self, child: _Child, beats: list[Entry], silent: float, back: list[Entry]) -> None:
        """Keep its leases, and let run elsewhere what it has leased but not begun."""
        try:
            if beats:
                await self._beat_for(child, beats, silent)
            if back:
                await self._give_back(back)
        except StoreError as error:
            self._complaint.about("the supervisor found no store", error)
        except Exception as error:  # noqa: BLE001  # boundary: our fault is not the children's
            self._complaint.about(f"worker {child.id} cannot be looked after", error)

    async def _beat_for(self, child: _Child, held: list[Entry], silent: float) -> None:
        assert self.store is not None
        beats = [Beat(e.lease, self._config.lease, started=e.started) for e in held]
        lost = (await self.store.extend(beats)).count(Grip.LOST)
        _log.warning(
            "worker %s (pid %d) has not beaten for %.1f s: its supervisor keeps its %d lease(s)%s",
            child.id,
            child.pid,
            silent,
            len(beats) - lost,
            f"; {lost} had run out" if lost else "",
        )

    async def _give_back(self, taken: list[Entry]) -> None:
        assert self.store is not None
        move = released(Place.OWN)
        await self.store.settle([Settlement(e.lease, move) for e in taken])

    def _kill_the_overdue(self, child: _Child, held: list[Entry], now: int) -> None:
        grace = self._config.kill_grace * 1_000_000 + _SLACK_NS
        overdue = [e for e in held if e.started and e.deadline_ns and now > e.deadline_ns]
        for entry in overdue:
            if now > entry.deadline_ns + grace:
                child.overdue = {(e.queue, e.id): _timed_out(e) for e in overdue}
                child.kill(
                    f"killed by its supervisor: job {entry.id} was past its deadline and did not react"
                )
                return

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


class _Child:
    """One worker process, its table, and the socket that tells each of the other's death."""

    def __init__(
        self, app: str, config: Config, queues: tuple[Queue, ...] | None, burst: bool, death: Death | None
    ) -> None:
        self.id = mint()
        self.cause: str | None = None
        #: The jobs (queue, id) that it was killed for, with how they had timed out.
        self.overdue: dict[tuple[str, str], str] = {}
        self.refusal: str | None = None
        self.greeted = False  # it listens to signals
        self._told_to_end = False
        self.spoke_ns = 0  # when we last beat for it
        self.looked_ns = 0  # when we last read its table
        self.speaking: asyncio.Task[None] | None = None  # asks the store for it
        self.ooms_before = oom_kills()
        self.table = LeaseTable.create(config.concurrency)
        self._mine, theirs = socket.socketpair()
        # a key the child finds where we did: what it is told stands in its environment
        told = dataclasses.replace(config, key="")
        orders = Orders(
            app, told, queues, burst, self.id, os.getpid(), theirs.fileno(), self.table.fileno(), death
        )
        env = {**os.environ, ORDERS: msgspec.json.encode(orders).decode()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.worker.process"],
            env=env,
            pass_fds=[theirs.fileno(), self.table.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self, said_hello: Callable[[Hello], None]) -> int:
        """Until the process has ended; its exit code, negative for a signal. Its hello is passed on."""
        hearing = asyncio.create_task(self._hear(said_hello))
        try:
            code = await self._exit()
            # it is in the socket or never comes; who else still holds the other end is not waited for
            await asyncio.wait({hearing}, timeout=0.1)
            return code
        finally:
            hearing.cancel()
            self._mine.close()

    async def _hear(self, said_hello: Callable[[Hello], None]) -> None:
        loop, heard = asyncio.get_running_loop(), b""
        self._mine.setblocking(False)
        while part := await loop.sock_recv(self._mine, 65_536):
            *lines, heard = (heard + part).split(b"\n")
            for line in lines:
                said = msgspec.json.decode(line, type=Said)
                if isinstance(said, Refusal):
                    self.refusal = said.why
                else:
                    self.greeted = True
                    said_hello(said)

    async def _exit(self) -> int:
        """In a thread of its own: the loop's shared ones are few, and children may be many."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def tell(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        def wait() -> None:
            code = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, code)

        threading.Thread(target=wait, name=f"penstock-worker-{self.pid}", daemon=True).start()
        return await ended

    def ended_as_asked(self, code: int) -> bool:
        """Whether it came to its end as a worker should, and left nothing behind."""
        if self.table.entries():
            return False
        # before its loop runs, and after that, nobody is there to hear the signal, which ends it then
        return code in (0, REPLACE) or (self._told_to_end and code == -signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        self._told_to_end |= number == signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self, cause: str) -> None:
        if self.cause is None:
            self.cause = cause
            _log.error("worker %s (pid %d) is killed: %s", self.id, self.pid, cause)
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        self.table.close()


async def _own_attempts(store: Store, worker: str) -> dict[Ref, Lease]:
    """The leases that it had fetched, without those that it had reclaimed from others."""
    found: dict[Ref, Lease] = {}
    after: str | None = None
    while True:
        page = await store.list_jobs(state=State.RUNNING, worker=worker, after=after, limit=500)
        for job in page.jobs:
            if not (job.reason or "").startswith(LOST_BY):
                found[job.ref] = job.lease
        if (after := page.next) is None:
            return found


def _timed_out(entry: Entry) -> str:
    spent = (entry.deadline_ns - entry.started_ns) / 1e9
    return f"the attempt timed out after {number(spent)} s and did not react: its process was killed"
