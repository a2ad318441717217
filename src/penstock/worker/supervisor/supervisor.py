"""Starts worker processes, restarts them when they die, and passes signals on to them.

The supervisor never imports user code: each child does, and sends the address of its store. The jobs that a
child has leased are in a table of shared memory, which outlives the child.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
import traceback
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.core.formats import format_ms
from penstock.core.ids import mint
from penstock.maintenance.service import ProblemLog
from penstock.stores.connect import connect
from penstock.stores.contract import Store
from penstock.worker.liveness import LivenessLock
from penstock.worker.logs import report_refusal
from penstock.worker.orders import REFUSED, UNREACHABLE, UNUSABLE, ChildHello, Death, Orders
from penstock.worker.queues import Queue
from penstock.worker.signals import (
    DRAIN,
    block_signals,
    how_it_ended,
    listen,
    listen_for_stacks,
    unblock_signals,
)
from penstock.worker.supervisor.lease_keeper import LeaseKeeper
from penstock.worker.supervisor.lost_work import DeadWorker, LostWork, final_entries
from penstock.worker.supervisor.worker_process import WorkerProcess, can_fork, orphan_reaper

if TYPE_CHECKING:  # loaded only if there are metrics
    from penstock.worker.supervisor.operator_listener import OperatorListener

_log = logging.getLogger("penstock.supervisor")
_TICK = 0.05
#: A child that lived this long was healthy: its death does not lengthen the pause before a restart (s).
_HEALTHY = 30.0
#: After a second signal, a child that has not ended within this time is killed (s).
_STOP_NOW_GRACE = 3.0
_BETWEEN_SIGNALS = 0.2
#: How long a stopping supervisor waits for a store that does not answer (s).
_STORE_TIMEOUT = 3.0
#: Maximum number of dead jobs that are reported to the next child: they are passed in its environment.
_MAX_REPORTED = 200
_NO_STORE = (UNUSABLE, UNREACHABLE)
#: The class of the worker processes; a chaos run records their kills.
process_class = WorkerProcess


def supervise(
    app: str,
    config: Config,
    *,
    queues: Sequence[Queue] | None = None,
    burst: bool = False,
) -> int:
    """Run `config.processes` workers of the app until stopped; returns the exit code.

    0: all ended as requested. 1: a child died, or had to be killed, at the end. 78: the app cannot be served.
    74: the store is unusable. 75: the store was unreachable at the start.
    """
    if hasattr(
        signal, "SIGCHLD"
    ):  # ignored, as some launchers leave it, the exit codes of children would be lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    supervisor = Supervisor(app, config, queues, burst)
    block_signals()
    orders = supervisor.fork_children() if can_fork() else None
    if orders is not None:
        del supervisor  # this is a worker process now
        unblock_signals()
        sys.exit(_work(orders))
    return asyncio.run(supervisor.run())


def _work(orders: Orders) -> int:
    """Be a worker process; an error ends it as it ends a new program."""
    from penstock.worker.process import work_in_fork

    try:
        return work_in_fork(orders)
    except Exception:  # noqa: BLE001  # boundary: the caller is the command line, which would report it as its own
        traceback.print_exc()
        return 1


class Supervisor:
    """Runs `config.processes` worker processes; `run` returns the exit code."""

    def __init__(self, app: str, config: Config, queues: Sequence[Queue] | None, burst: bool) -> None:
        self._app = app
        self._config = config
        self._queues = tuple(queues) if queues is not None else None
        self._burst = burst
        self._id = mint()
        self._children: list[WorkerProcess] = []
        self._draining: set[asyncio.Future[None]] = set()  # the ends of replaced children
        self._forked: list[WorkerProcess] = []  # those of them that `_keep_alive` does not know yet
        self._stopping = False
        self._stopped = asyncio.Event()
        self._is_quiet = False
        self._stop_by = float("inf")
        self._code = 0
        self._reported: set[str] = set()
        self._has_listeners = False  # whether the app has listeners or callbacks
        self._deaths: asyncio.Queue[Death] = asyncio.Queue()  # for any child to report
        self._address: tuple[str, str] | None = None  # the URL and namespace of the app's store
        self._store: Store | None = None
        self._store_hangs = False  # it did not answer in time, so closing it could hang too
        self._problem_log = ProblemLog(_log)
        self._keeper = LeaseKeeper(config, self._problem_log)
        self._listener: OperatorListener | None = None

    def fork_children(self) -> Orders | None:
        """Start all worker processes as forks: returns None here, and its orders in each of them.

        Call it before `run`, while `can_fork()`.
        """
        for _ in range(self._config.processes):
            child = self._new_child(None)
            try:
                orders = child.fork()
            except OSError:  # `run` starts the rest as new programs, again and again if need be
                return None
            if orders is not None:
                for other in self._children:
                    other.close_in_fork()
                return orders
            self._children.append(child)
            self._forked.append(child)
        return None

    async def run(self) -> int:
        listen(self._on_stop_signal, self._quiet, drain=DRAIN)
        listen_for_stacks(self._show_stacks)
        unblock_signals()
        lock = LivenessLock(self._id)
        try:
            await self._listen()
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                runners = [group.create_task(self._keep_alive()) for _ in range(self._config.processes)]
                await asyncio.wait(runners)
                await asyncio.gather(*self._draining)
                watch.cancel()
        finally:
            if self._listener is not None:
                await self._listener.stop()
            lock.release()
            if self._store is not None and not self._store_hangs:
                self._store.close()
        if self._code in (0, 1):  # else it never began, and the reason was printed
            _log.info("stopped (exit code %d)", self._code)
        return self._code

    async def _listen(self) -> None:
        """Serve metrics and health, if they have a port. Their code is loaded only then."""
        if not (self._config.metrics_port or self._config.health_port):
            return
        from penstock.worker.supervisor.operator_listener import OperatorListener

        self._listener = OperatorListener(
            self._config,
            lambda: self._children,
            lambda: None if self._address is None else self._open_store(),
        )
        try:
            await self._listener.start()
        except ConfigError as error:
            self._report_refusal(str(error))
            self._code = REFUSED
            self._stop()

    # ── start and end of children ────────────────────────────────────────────────────────────────

    async def _keep_alive(self) -> None:
        """Keep one child running: start it, and restart it when it dies."""
        failures, began = 0, False
        death: Death | None = None
        child: WorkerProcess | None = None
        while child is not None or self._forked or not self._stopping:
            try:
                child = child or self._next_child(death)
            except OSError as error:
                failures += 1
                _log.error("a worker process cannot be started: %s; the start is repeated", error)
                await self._unless_stopped(_pause(failures))
                continue
            started = time.monotonic()
            code = await _end_or_replacement(child)
            if code is None:
                draining = asyncio.ensure_future(self._await_replaced(child))
                self._draining.add(draining)
                draining.add_done_callback(self._draining.discard)
                child, death, failures = child.successor, None, 0
                continue
            asked, death = await self._after_end(child, code)
            if child.successor is not None and death is not None:
                self._hand_over(death)
                death = None
            if code == REFUSED or (code in _NO_STORE and not began):
                self._code = code
                self._stop()
            began = began or code not in _NO_STORE
            child = child.successor  # it has been started, and does not serve yet
            if asked and code == 0 and self._burst and child is None:
                break  # nothing is left to do
            failures = 0 if asked or time.monotonic() - started > _HEALTHY else failures + 1
            if child is not None:
                continue
            if self._is_quiet:
                await self._stopped.wait()
            elif not self._stopping and failures > 1:
                await self._unless_stopped(_pause(failures))

    async def _after_end(self, child: WorkerProcess, code: int) -> tuple[bool, Death | None]:
        """Forget a child that has ended, and reclaim its jobs if it has died.

        Returns whether it ended as requested, and else its death.
        """
        self._children.remove(child)
        asked = child.ended_as_requested(code)
        if self._listener is not None:
            self._listener.ended(child, died=not asked)
        death = None if asked else await self._reclaim_jobs(child, code)
        child.close()
        if child.refusal is not None:
            self._report_refusal(child.refusal)
        return asked, death

    async def _await_replaced(self, child: WorkerProcess) -> None:
        """Await the end of a child that another one has replaced."""
        _, death = await self._after_end(child, await child.end)
        if death is not None:
            self._hand_over(death)

    def _hand_over(self, death: Death) -> None:
        """Let a child that is there report a death to listeners: none will start that could."""
        if self._has_listeners and not self._stopping:
            self._deaths.put_nowait(death)

    def _new_child(self, death: Death | None) -> WorkerProcess:
        return process_class(self._app, self._config, self._queues, self._burst, death)

    def _next_child(self, death: Death | None) -> WorkerProcess:
        if not self._forked:
            return self._start_child(death)
        child = self._forked.pop()
        self._await_end(child)
        return child

    def _start_child(self, death: Death | None) -> WorkerProcess:
        child = self._new_child(death)
        child.start()
        self._children.append(child)
        self._await_end(child)
        return child

    def _await_end(self, child: WorkerProcess) -> None:
        child.end = asyncio.ensure_future(
            child.wait(self._on_hello, lambda act: self._on_request(child, act), self._deaths)
        )

    # ── replacement ──────────────────────────────────────────────────────────────────────────────

    def _replace(self, child: WorkerProcess) -> None:
        """Start a process in place of this one, which drains as soon as the new one serves."""
        if self._stopping or self._is_quiet or child.successor is not None:
            return
        try:
            child.successor = successor = self._start_child(None)
        except OSError as error:
            _log.error("worker %s is not replaced: no process can be started: %s", child.id, error)
            return
        successor.replaces = child
        successor.end.add_done_callback(lambda _: self._not_replaced(child, successor))

    def _serves(self, successor: WorkerProcess) -> None:
        """A process serves: the one whose place it takes drains, and is killed if it does not end in time."""
        child, successor.replaces = successor.replaces, None
        if child is None or child.end.done():
            return
        child.replaced.set()
        if self._stopping:
            return  # it drains already
        child.signal(signal.SIGTERM)
        seconds = (self._config.drain_timeout + self._config.kill_grace) / 1000

        def overdue() -> None:
            if child in self._children:
                child.kill("it was replaced, and did not end within the drain time")

        asyncio.get_running_loop().call_later(seconds, overdue)

    def _not_replaced(self, child: WorkerProcess, successor: WorkerProcess) -> None:
        """After the end of a successor that never served: forget it. `child` continues."""
        if child.replaced.is_set() or child not in self._children:
            return  # `_keep_alive` awaits it
        child.successor = None
        self._children.remove(successor)
        successor.close()
        why = f": {successor.refusal}" if successor.refusal else ""
        if not self._stopping:
            _log.error("the process that replaces worker %s has not started%s", child.id, why)

    def _report_refusal(self, why: str) -> None:
        """Report why children cannot work; the same reason is reported once."""
        if why not in self._reported:
            self._reported.add(why)
            report_refusal(self._config, why)

    async def _unless_stopped(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _on_hello(self, hello: ChildHello) -> None:
        self._has_listeners |= hello.has_listeners
        if self._address is None and hello.url is not None and not hello.url.startswith("memory:"):
            self._address = hello.url, hello.namespace

    def _open_store(self) -> Store:
        """The app's store. It is opened at its first use, because its code takes 2 MB, and a supervisor whose
        worker processes neither hang nor die never needs it."""
        if self._store is None:
            assert self._address is not None
            self._store = connect(self._address[0], namespace=self._address[1])
        return self._store

    async def _reclaim_jobs(self, child: WorkerProcess, code: int) -> Death | None:
        """Reclaim the dead child's jobs at once; returns the death to report to the next child."""
        held = final_entries(child.table)
        cause = child.cause or how_it_ended(code, child.oom_kills_before)
        if child.refusal is not None and not held:
            return None
        _log.error("worker %s (pid %d) died: %s; it held %d job(s)", child.id, child.pid, cause, len(held))
        lost = LostWork(
            DeadWorker(child.id, cause, held, child.overdue),
            by=self._id,
            config=self._config,
            reportable_deaths=self._reportable_deaths,
            problem_log=self._problem_log,
            on_reclaimed=None if self._listener is None else self._listener.reclaimed,
        )
        if self._address is not None:
            await self._run_unless_stopped(lost.take_back(self._open_store))
        if self._stopping:  # also if the stop came while the store was waited for
            self._code = self._code or 1
        return Death(child.id, cause, len(held), tuple(lost.dead[:_MAX_REPORTED]))

    def _reportable_deaths(self) -> int | None:
        """How many deaths the next child can report; None if the app has no listeners or callbacks."""
        if not self._has_listeners:
            return None
        return 0 if self._stopping or self._is_quiet else _MAX_REPORTED

    async def _run_unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; after a stop only for _STORE_TIMEOUT seconds, because leases expire by themselves."""
        doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            done, _ = await asyncio.wait({doing}, timeout=_STORE_TIMEOUT)
            self._store_hangs |= not done
        finally:
            doing.cancel()
            stopped.cancel()

    # ── while a child cannot act itself ──────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Watch the children and kill them when they must be. Store calls are tasks, so this never waits."""
        reap_orphans = orphan_reaper(lambda: {child.pid for child in self._children})
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(_TICK)
                reap_orphans()
                for child in list(self._children):
                    try:
                        if self._address is not None:
                            self._keeper.check(self._open_store, child, group)
                    except Exception as error:  # noqa: BLE001  # boundary: a bug here must not stop the children
                        self._problem_log.report(f"worker {child.id} cannot be checked", error)
                if time.monotonic() > self._stop_by:
                    self._kill_all("it did not end within the drain time")

    # ── signals ──────────────────────────────────────────────────────────────────────────────────

    def _on_stop_signal(self) -> None:
        count, drain = len(self._children), format_ms(self._config.drain_timeout)
        if self._stopping:
            _log.info("second stop signal: %d worker process(es) end at once", count)
        else:
            _log.info("stop signal: %d worker process(es) drain, for up to %s", count, drain)
        self._stop()

    def _on_request(self, child: WorkerProcess, act: str) -> None:
        """Do what an operator has told a child through the store."""
        if act == "serves":
            self._serves(child)
            return
        _log.warning("worker %s was told to %s", child.id, act)
        if act == "restart":
            self._replace(child)
        elif act == "quiet":
            self._quiet()
        elif not self._stopping:  # each of several children is told
            self._on_stop_signal()
        if act == "stop":  # as a second signal; it would be lost if it came together with the first
            asyncio.get_running_loop().call_later(_BETWEEN_SIGNALS, self._stop)

    def _stop(self) -> None:
        now, grace = time.monotonic(), self._config.kill_grace / 1000
        if self._stopping:
            self._stop_by = min(self._stop_by, now + min(grace, _STOP_NOW_GRACE))
        else:
            self._stop_by = now + self._config.drain_timeout / 1000 + grace
        first = not self._stopping
        self._stopping = True
        self._stopped.set()
        for child in self._children:
            if not (first and child.replaced.is_set()):  # it drains: a second SIGTERM stops a child at once
                child.signal(signal.SIGTERM)

    def _quiet(self) -> None:
        """Stop fetching; running jobs continue. A child that is still starting is stopped: it has no jobs."""
        self._is_quiet = True
        _log.info("%d worker process(es) stop fetching; running jobs continue", len(self._children))
        for child in self._children:
            child.signal(signal.SIGUSR1 if child.ready_for_signals else signal.SIGTERM)

    def _show_stacks(self) -> None:
        """Let each child print its stacks, one after the other, so that their output does not mix.

        This process has printed its own. Children that are still starting are skipped: the signal would stop
        them.
        """
        loop = asyncio.get_running_loop()
        for nth, child in enumerate(child for child in self._children if child.ready_for_signals):
            loop.call_later(0.1 * nth, child.signal, signal.SIGTTIN)

    def _kill_all(self, cause: str) -> None:
        for child in self._children:
            child.kill(cause)


async def _end_or_replacement(child: WorkerProcess) -> int | None:
    """Wait until a child has ended, and return its exit code; or until another one has replaced it: None."""
    replaced = asyncio.ensure_future(child.replaced.wait())
    both: list[asyncio.Future[Any]] = [child.end, replaced]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        replaced.cancel()
    return None if child.replaced.is_set() else child.end.result()


def _pause(failures: int) -> float:
    """How long (s) to wait before a child is started again."""
    return min(10.0, 0.1 * 2.0 ** min(failures, 7))
