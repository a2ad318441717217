"""Conducts a run: work goes on, harm is done to it, everything drains, and the account is compared."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.app.app import App
from penstock.config import load
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import Job, State
from penstock.stores.contract import Store
from penstock.verify.environment import Environment
from penstock.verify.faults.chaos_run import ChaosRun
from penstock.verify.faults.injector import FaultInjector
from penstock.verify.faults.plan import AREAS, PlannedFault, RunRequest, plan
from penstock.verify.faults.task_faults import UNKNOWN_TASK
from penstock.verify.fleet import Fleet
from penstock.verify.interrupts import undisturbed
from penstock.verify.ledger import Ledger
from penstock.verify.ledger.check import judge, snapshot
from penstock.verify.ledger.reading.history import read
from penstock.verify.report.report import Account, Report, report_of
from penstock.verify.run_folder import RunFolder
from penstock.verify.servers import power

__all__ = ["VerifyProgress", "conduct"]

#: How long the first workers may take until they work (s).
_UNTIL_READY = 60.0
#: After the last harm: the least time to finish what is there, and what is added per second of the run (s).
_DRAIN, _DRAIN_SHARE = 60.0, 0.5
_LOOK = 0.25
#: How much longer harm is done than was asked for, so that each kind has had its turn (s).
_OVERTIME = 120.0
_UNDONE = frozenset(State) - {State.COMPLETED, State.CANCELLED, State.DEAD}
#: Nothing that a run enqueues is due later than this from now (ms), unless a wrong clock has said so.
_LATEST = 60_000


@dataclass(frozen=True)
class VerifyProgress:
    """How far it is; `news`, if there are any."""

    phase: str  # starting, chaos, draining or checking
    at: float
    faults: int = 0
    undone: int | None = None
    news: str = ""


def conduct(
    place: RunFolder, environment: Environment, request: RunRequest, tell: Callable[[VerifyProgress], None]
) -> Report:
    """The whole run; `tell` hears how far it is. Raises VerifyFailed; and no process is left."""
    place.make()
    return _Run(place, environment, request, tell).conduct()


class _Run:
    def __init__(
        self,
        place: RunFolder,
        environment: Environment,
        request: RunRequest,
        tell: Callable[[VerifyProgress], None],
    ) -> None:
        self._place = place
        self._environment = environment
        self._request = request
        self._tell = tell
        self._over = threading.Event()
        self._trouble: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._reasons: list[str] = []
        self._began = time.monotonic()
        self._started_at = time.time()
        self._ledger = Ledger(place.ledger, note="the conductor")
        if environment.file is not None and "power-cut" in request.asked:
            power.begin(environment.file)
        self._app = App(environment.url, namespace=place.namespace, name="verify")
        self._ledger.watch(self._app)
        self._fleet = Fleet(place, seed=request.seed, workers=request.workers, rate=request.rate)
        self._run = ChaosRun(
            self._fleet,
            self._ledger,
            self._app,
            lease=_seconds_of_lease(place),
            over=self._over,
            tell=lambda news: self._say("chaos", news=news),
            file=environment.file,
            server=environment.server,
            proxies=environment.proxies,
            homes=environment.homes(place.namespace),
        )
        self._injector = FaultInjector(self._run)

    def conduct(self) -> Report:
        try:
            self._start()
            self._chaos()
            self._drain()
            return self._report()
        finally:
            with undisturbed():
                self._over.set()
                self._fleet.close()
                for thread in self._threads:  # what one of them still does must not meet the cleaning up
                    thread.join()
                self._app.close()

    # ── the phases ───────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._say("starting")
        asyncio.run(
            self._app.store.queues()
        )  # a store that is not there is an error now, not in every process
        self._fleet.start()
        self._fleet.wait_ready(_UNTIL_READY)
        self._injector.look_for_failovers()
        self._began, self._started_at = time.monotonic(), time.time()

    def _chaos(self) -> None:
        """Until the time is over and each kind has been done once."""
        ends = time.monotonic() + self._request.seconds
        first_round = [threading.Event() for _ in AREAS]
        injectors = [
            self._thread(self._inject, area, done) for area, done in zip(AREAS, first_round, strict=True)
        ]
        keeper = self._thread(self._keep)
        while not self._over.wait(_LOOK):
            self._say("chaos")
            if self._trouble:
                raise self._trouble[0]
            over = time.monotonic() - ends
            if over > _OVERTIME or (over >= 0 and all(done.is_set() for done in first_round)):
                break
        self._over.set()
        for thread in (*injectors, keeper):
            thread.join()
        if self._trouble:
            raise self._trouble[0]

    def _inject(self, area: str, first_round_done: threading.Event) -> None:
        for step in plan(self._request.seed, area, self._request.asked):
            if not step.first:
                first_round_done.set()
            if self._over.wait(step.pause):
                break
            self._act(step)
        first_round_done.set()

    def _act(self, step: PlannedFault) -> None:
        done = len(self._run.done)
        self._injector.do(step)
        while step.first and len(self._run.done) == done and not self._over.wait(0.2):
            self._injector.do(step)  # nobody was there to be harmed, or the store was away: it is still owed

    def _keep(self) -> None:
        while not self._over.wait(_LOOK):
            self._fleet.keep()

    def _thread(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)
            except BaseException as error:  # noqa: BLE001  # boundary: raised again in the main thread
                self._trouble.append(error)

        thread = threading.Thread(target=run, name=work.__name__)
        self._threads.append(thread)
        thread.start()
        return thread

    def _drain(self) -> None:
        """No more jobs, no more harm; all that is there comes to its end, within a limit."""
        self._say("draining")
        self._fleet.end_producers()
        self._fleet.keep()
        if any(done.kind == "two-versions" for done in self._run.done):
            self._fleet.employ("lone", version="2")  # what only the new code knows is done by the new code
        limit = _DRAIN + _DRAIN_SHARE * self._request.seconds
        ends = time.monotonic() + limit
        left: int | None = None
        while left != 0:
            with contextlib.suppress(StoreError):
                left = asyncio.run(self._tidy(self._app.store))
            self._say("draining", undone=left)
            if time.monotonic() > ends:
                self._reasons.append(f"{left} job(s) had not ended {limit:.0f} s after the last harm")
                break
            self._fleet.keep()
            time.sleep(_LOOK)
        late = self._fleet.end_workers()
        self._injector.look_for_failovers()
        self._reasons += [f"{member.name} did not end within 40 s of SIGTERM" for member in late]

    async def _tidy(self, store: Store) -> int:
        """End what recurs, cancel what nobody knows, bring near what a wrong clock put off; count all."""
        table = await store.entries()
        if running := [entry.ref for entry in table.entries if not entry.paused]:
            await store.pause_entries(running, True)
        infos = await store.queues()
        if away := next((info.away for info in infos if info.away), ""):
            raise StoreUnavailable(away)  # nobody knows what is there
        counts = {state: sum(info.counts.get(state, 0) for info in infos) for state in State}
        if counts[State.PARKED]:
            parked = await store.list_jobs(state=State.PARKED, task=UNKNOWN_TASK, limit=1_000)
            await store.cancel([job.ref for job in parked.jobs])
        if self._misled() and (counts[State.SCHEDULED] or counts[State.RETRYABLE]):
            await self._bring_near(store)
        return sum(counts[state] for state in _UNDONE)

    def _misled(self) -> bool:
        return self._environment.file is not None and any(done.kind == "clock" for done in self._run.done)

    async def _bring_near(self, store: Store) -> None:
        """In a file its own clock counts, and a worker with a wrong one may have put a job off by an hour."""
        far = [
            job.ref
            for state in (State.SCHEDULED, State.RETRYABLE)
            for job in (await store.list_jobs(state=state, limit=1_000)).jobs
            if _is_far(job)
        ]
        if far:
            await store.reschedule(far, delay=0)

    def _report(self) -> Report:
        self._say("checking")
        store = self._app.store
        history = read(self._place.ledger)
        seen = asyncio.run(snapshot(store, history))
        account = Account(
            request=self._request,
            environment=self._environment,
            history=history,
            verdict=judge(
                history,
                seen,
                forgiven=self._run.forgiven,
                undone=self._run.undone,
                unleased=self._run.unleased,
                lost_shards=self._run.lost_shards,
            ),
            run=self._run,
            began=self._began,
            started_at=self._started_at,
            reasons=self._reasons,
        )
        return report_of(account)

    def _say(self, phase: str, *, undone: int | None = None, news: str = "") -> None:
        self._tell(VerifyProgress(phase, time.monotonic() - self._began, len(self._run.done), undone, news))


def _is_far(job: Job) -> bool:
    return job.run_at > time.time_ns() // 1_000_000 + _LATEST


def _seconds_of_lease(place: RunFolder) -> float:
    return load(env=place.env()).config.lease / 1000
