"""Conducts a chaos run: starts work, injects faults, drains, and compares the ledger with the store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from penstock.app.app import App
from penstock.config import load
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import Job, State
from penstock.inspector.bulk_acts import BulkActs, BulkState
from penstock.stores.contract import Capability, Store, StoredStep
from penstock.verify.environment import Environment
from penstock.verify.faults.chaos_run import ChaosRun
from penstock.verify.faults.job_faults import UNKNOWN_TASK
from penstock.verify.faults.plan import AREAS, FaultInjector, PlannedFault, plan
from penstock.verify.fleet import Fleet
from penstock.verify.ledger import Ledger
from penstock.verify.ledger.check import snapshot, verdict_on
from penstock.verify.ledger.history import read
from penstock.verify.ledger.rules.counters import Numbers, numbers_of
from penstock.verify.ledger.story import label_of
from penstock.verify.report.report import Account, Report, report_of
from penstock.verify.run_folder import RunFolder, RunRequest, VerifyFailed
from penstock.verify.servers import disks

#: Timeout until the first workers serve (s).
_UNTIL_READY = 60.0
#: Timeout of the drain after the last fault: its minimum, and its part per second of the run (s).
_DRAIN, _DRAIN_SHARE = 60.0, 0.5
_LOOK = 0.25
#: Longest extension of the fault injection until each requested type has happened once (s).
_OVERTIME = 120.0
_UNFINISHED = frozenset(State) - {State.COMPLETED, State.CANCELLED, State.DEAD}
#: A job due later than this (ms from now) was delayed by a worker with a wrong clock.
_LATEST = 60_000
#: A job that waits for a signal longer than this (ms), although nothing else is left, has waited in vain: by
#: then it has repeated the wait.
_LONGEST_WAIT = 90_000
#: Flows that are listed in one call.
_PAGE = 1_000


@dataclass(frozen=True)
class VerifyProgress:
    """The progress of a run; `news` is a message for the user, or empty."""

    phase: str  # starting, chaos, draining or checking
    at: float
    faults: int = 0
    unfinished: int | None = None
    news: str = ""


def conduct(
    folder: RunFolder,
    environment: Environment,
    request: RunRequest,
    on_progress: Callable[[VerifyProgress], None],
) -> Report:
    """Conduct the whole run and leave no process behind. Calls `on_progress` often. Raises VerifyFailed."""
    folder.make()
    return _Run(folder, environment, request, on_progress).conduct()


class _Run:
    def __init__(
        self,
        folder: RunFolder,
        environment: Environment,
        request: RunRequest,
        on_progress: Callable[[VerifyProgress], None],
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._request = request
        self._on_progress = on_progress
        self._over = threading.Event()
        self._trouble: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._reasons: list[str] = []
        self._began = time.monotonic()
        self._started_at = time.time()
        self._ledger = Ledger(folder.ledger, note="the conductor")
        if environment.file is not None and "power-cut" in request.asked:
            disks.start_tracking(environment.file)
        self._app = App(environment.url, namespace=folder.namespace, name="verify")
        self._ledger.watch(self._app)
        self._fleet = Fleet(folder, request)
        self._run = ChaosRun(
            self._fleet,
            self._ledger,
            self._app,
            lease=_seconds_of_lease(folder),
            over=self._over,
            tell=lambda news: self._progress("chaos", news=news),
            file=environment.file,
            server=environment.server,
            proxies=environment.proxies,
            shards_by_queue=environment.shards_by_queue(folder.namespace),
        )
        self._injector = FaultInjector(self._run)

    def conduct(self) -> Report:
        try:
            self._start()
            self._chaos()
            self._drain()
            return self._report()
        finally:
            with without_interrupts():
                self._over.set()
                self._fleet.close()
                for thread in self._threads:  # a fault in progress must not disturb the clean-up
                    thread.join()
                self._app.close()

    # ── the phases ───────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._progress("starting")
        asyncio.run(self._app.store.queues())  # fail now if the store is away, not in each process
        self._fleet.start()
        self._fleet.wait_ready(_UNTIL_READY)
        self._injector.detect_failovers()
        self._began, self._started_at = time.monotonic(), time.time()

    def _chaos(self) -> None:
        """Inject faults until the time is over and each requested type has happened once."""
        ends = time.monotonic() + self._request.seconds
        first_round = [threading.Event() for _ in AREAS]
        injectors = [
            self._thread(self._inject, area, done) for area, done in zip(AREAS, first_round, strict=True)
        ]
        replacer = self._thread(self._replace_dead)
        while not self._over.wait(_LOOK):
            self._progress("chaos")
            if self._trouble:
                raise self._trouble[0]
            over = time.monotonic() - ends
            if over > _OVERTIME or (over >= 0 and all(done.is_set() for done in first_round)):
                break
        self._over.set()
        for thread in (*injectors, replacer):
            thread.join()
        if self._trouble:
            raise self._trouble[0]

    def _inject(self, area: str, first_round_done: threading.Event) -> None:
        for step in plan(self._request.seed, area, self._request.asked):
            if not step.first:
                first_round_done.set()
            if self._over.wait(step.pause):
                break
            self._inject_step(step)
        first_round_done.set()

    def _inject_step(self, step: PlannedFault) -> None:
        done = self._injected(step.kind)
        self._injector.inject(step)
        while step.first and self._injected(step.kind) == done and not self._over.wait(0.2):
            self._injector.inject(step)  # retry: there was no victim, or the store was away

    def _injected(self, kind: str) -> int:
        """How often this kind has been injected. Other areas inject at the same time."""
        return sum(1 for done in self._run.done if done.kind == kind)

    def _replace_dead(self) -> None:
        while not self._over.wait(_LOOK):
            self._fleet.replace_dead()

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
        """Stop producers and faults, and wait (up to a limit) until every job has ended."""
        self._progress("draining")
        self._fleet.end_producers()
        self._fleet.replace_dead()
        if any(done.kind in ("two-versions", "rename") for done in self._run.done):
            self._fleet.add_worker("lone", version="2")  # for the jobs of tasks that only version 2 has
        limit = _DRAIN + _DRAIN_SHARE * self._request.seconds
        ends = time.monotonic() + limit
        left: int | None = None
        while left != 0:
            with contextlib.suppress(StoreError):
                left = asyncio.run(self._tidy(self._app.store))
            self._progress("draining", unfinished=left)
            if time.monotonic() > ends:
                self._reasons.append(
                    f"{left} job(s), flow(s) or bulk act(s) had not ended {limit:.0f} s after the last fault"
                )
                break
            self._fleet.replace_dead()
            time.sleep(_LOOK)
        late = self._fleet.end_workers()
        self._injector.detect_failovers()
        self._reasons += [f"{member.name} did not end within 40 s of SIGTERM" for member in late]

    async def _tidy(self, store: Store) -> int:
        """Pause periodic entries, cancel parked jobs, bring delayed ones forward.

        Answer: the number of unfinished jobs, or if there are none, of unfinished flows or bulk acts.
        """
        if store.can(Capability.SCHEDULE):
            table = await store.entries()
            if running := [entry.ref for entry in table.entries if not entry.paused]:
                await store.pause_entries(running, True)
        infos = await store.queues()
        if away := next((info.away for info in infos if info.away), ""):
            raise StoreUnavailable(away)  # a count would be incomplete
        counts = {state: sum(info.counts.get(state, 0) for info in infos) for state in State}
        if counts[State.PARKED] and store.can(Capability.SEARCH):
            parked = await store.list_jobs(state=State.PARKED, task=UNKNOWN_TASK, limit=1_000)
            await store.cancel([job.ref for job in parked.jobs])
        if self._had_wrong_clock() and (counts[State.SCHEDULED] or counts[State.RETRYABLE]):
            await self._bring_forward(store)
        left = sum(counts[state] for state in _UNFINISHED)
        if left and left == counts[State.SUSPENDED]:
            await self._cancel_waits_in_vain(store)
        return left or await self._open_flows(store) or await self._open_bulk_acts(store)

    def _had_wrong_clock(self) -> bool:
        return self._environment.file is not None and any(done.kind == "clock" for done in self._run.done)

    async def _bring_forward(self, store: Store) -> None:
        """Make jobs due now that a worker with a wrong clock delayed by an hour.

        SQLite takes the time from the process that writes, so only a run on a file needs this.
        """
        far = [
            job.ref
            for state in (State.SCHEDULED, State.RETRYABLE)
            for job in (await store.list_jobs(state=state, limit=1_000)).jobs
            if _is_far(job)
        ]
        if far:
            await store.reschedule(far, delay=0)

    async def _cancel_waits_in_vain(self, store: Store) -> None:
        """Cancel jobs whose naps a worker with a wrong clock has made an hour longer, and those that wait for
        a signal which the store was allowed to lose. The ledger's rules decide if that was so."""
        clock, now = self._had_wrong_clock(), time.time_ns() // 1_000_000
        for job in (await store.list_jobs(state=State.SUSPENDED, limit=1_000)).jobs:
            steps = {step.name: step for step in await store.steps(job.ref)}
            waits = [step for step in steps.values() if step.value is None]
            timed = all(f"{step.name}!until" in steps for step in waits) or any(
                map(_is_long_nap, steps.values())
            )
            lost = self._run.forgiven and any(now - step.at > _LONGEST_WAIT for step in waits)
            if lost or (clock and timed and _is_far(job)):
                await store.cancel([job.ref])

    async def _open_flows(self, store: Store) -> int:
        """The number of flows that have not ended."""
        if not store.can(Capability.FLOW):
            return 0
        n, after = 0, None
        while True:
            page = await store.list_flows(after=after, limit=_PAGE)
            n += sum(1 for info in page.flows if not info.ended)
            after = page.next
            if after is None:
                return n

    async def _open_bulk_acts(self, store: Store) -> int:
        """The number of bulk acts that run. One that a worker with a wrong clock holds for an hour is
        aborted."""
        if not store.can(Capability.DOCUMENTS):
            return 0
        acts = BulkActs(store)
        running = [one for one in await acts.all() if one.state is BulkState.RUNNING]
        if self._had_wrong_clock():
            for one in running:
                await acts.abort(one.id, by="verify")
        return len(running)

    def _report(self) -> Report:
        self._progress("checking")
        store = self._app.store
        history = read(self._folder.ledger)
        seen = asyncio.run(snapshot(store, history))
        counts = store.can(Capability.MEASURE)
        commands = command_line_numbers(self._environment.url, self._folder.namespace, totals=counts)
        seen = replace(seen, shown={**seen.shown, "the command line": commands})
        account = Account(
            request=self._request,
            environment=self._environment,
            history=history,
            verdict=verdict_on(
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

    def _progress(self, phase: str, *, unfinished: int | None = None, news: str = "") -> None:
        self._on_progress(
            VerifyProgress(phase, time.monotonic() - self._began, len(self._run.done), unfinished, news)
        )


def _is_far(job: Job) -> bool:
    return job.run_at > time.time_ns() // 1_000_000 + _LATEST


def _is_long_nap(step: StoredStep) -> bool:
    """Whether this is a nap whose end is as far away as that of a worker with a wrong clock."""
    if step.value is None or label_of(step.name)[::2] != ("sleep", ""):
        return False
    return int(step.value.rpartition(b"\n")[2]) > time.time_ns() // 1_000_000 + _LATEST


def _seconds_of_lease(folder: RunFolder) -> float:
    return load(env=folder.env()).config.lease / 1000


# ── what the command line shows ──────────────────────────────────────────────────────────────────


_PATIENCE = 60.0


def command_line_numbers(url: str, namespace: str, *, totals: bool = True) -> Numbers:
    """The jobs by state of all queues, from `penstock queues list`; the `totals` from `penstock stats`.

    Raises VerifyFailed.
    """
    env = {**os.environ, "PENSTOCK_URL": url, "PENSTOCK_NAMESPACE": namespace}
    stats = _json(env, "stats")["queues"] if totals else []
    return numbers_of(_json(env, "queues", "list")["queues"], stats)


def _json(env: dict[str, str], *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "penstock", *words, "--json"]
    said = subprocess.run(  # noqa: S603 (a program of ours, in words of ours)
        command, env=env, capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    if said.returncode:
        raise VerifyFailed(f"penstock {' '.join(words)} failed: {said.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


# ── interrupts ───────────────────────────────────────────────────────────────────────────────────

#: The first of these ends a run in order; later ones are ignored.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ignore(*_: Any) -> None:
    """Do nothing. Used in place of SIG_IGN, which makes Python complain about a pending signal."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """End the block at the first signal with KeyboardInterrupt, and ignore the next: they would cut the
    clean-up short."""

    def interrupt(*_: Any) -> None:
        for number in handled:
            signal.signal(number, _ignore)
        raise KeyboardInterrupt

    handled = [number for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    with _handled(handled, interrupt):
        yield


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignore these signals until the block has ended."""
    with _handled(_ENDS, _ignore):
        yield


@contextlib.contextmanager
def _handled(numbers: Any, handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
