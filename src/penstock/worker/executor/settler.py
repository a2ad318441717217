"""Writes outcomes to the store in batches, and repeats each until the store has answered.

While the event loop has jobs to start, outcomes are collected for at most `_COLLECT_FOR`: writing in the
middle of a burst of short jobs would slow the burst down. If the store is unreachable, outcomes are kept and
sent again; the fetcher starts no jobs while too many wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.app.deciding import decided, undo_first
from penstock.app.outcome_events import event_of
from penstock.core import clock
from penstock.core.errors import StoreError
from penstock.core.events import LateResultRefused
from penstock.core.formats import format_ms
from penstock.core.job import TERMINAL, AttemptError, Job, State
from penstock.core.lifecycle import Transition
from penstock.core.loops import start_later
from penstock.core.outcomes import Raised
from penstock.core.text import text_of
from penstock.maintenance.service import ProblemLog, pause_after
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Settled, Settlement
from penstock.worker.callbacks import CallbackRunner
from penstock.worker.executor.slots import Slots
from penstock.worker.leased_jobs import LeasedJob, store_lines
from penstock.worker.logs import log_with_traceback
from penstock.worker.setup import WorkerSetup
from penstock.worker.worker_stats import AttemptRecorder

_log = logging.getLogger("penstock.worker")
#: Maximum time for which an outcome is collected while the worker is busy starting jobs (s).
_COLLECT_FOR = 0.005
#: Outcomes of attempts longer than this (s) are written at once: if the worker dies before the write, the
#: job runs again.
_SHORT_ATTEMPT = 0.005
_BATCH = 2_000
#: Outcomes older than this (s) wait for the store, and not for others.
_DELAYED = 1.0
#: Outcomes wait at most this long (s) for the last log lines of their jobs.
_LINES_WITHIN = 2.0


class Settler:
    """Collects settlements and writes them, one batch in flight.

    What the store has applied goes to the `recorder`, and to the `callback_runner` if the app has callbacks.
    """

    def __init__(
        self, setup: WorkerSetup, slots: Slots, recorder: AttemptRecorder, callback_runner: CallbackRunner
    ) -> None:
        self._store = setup.app.store
        self._app = setup.app
        self._slots = slots
        self._leased_jobs = slots.leased_jobs
        self._keep_dead = setup.config.keep_dead
        self._lease = setup.config.lease
        self._recorder = recorder
        self._callback_runner = callback_runner
        self._waiting: list[LeasedJob] = []
        self._settlements: list[Settlement] = []  # parallel to `_waiting`: pairs cost garbage collection
        self._oldest = 0.0
        self._write_task: asyncio.Task[None] | None = None
        self._deferred: list[tuple[LeasedJob, Settlement]] = []  # their part of the store is unreachable
        self._repeat_task: asyncio.Task[None] | None = None
        self._write_now = asyncio.Event()
        self.problem_log = ProblemLog(_log)
        #: True while the store refuses outcomes.
        self.failing = False

    @property
    def unsent(self) -> int:
        return len(self._waiting)

    @property
    def deferred(self) -> int:
        """Number of outcomes whose part of the store is unreachable while others can be settled."""
        return len(self._deferred)

    def settle(self, leased: LeasedJob, move: Transition, result: bytes | None) -> None:
        """Write this outcome with the next batch."""
        if not self._waiting:
            self._oldest = time.monotonic()
        self._waiting.append(leased)
        self._settlements.append(Settlement(leased.job.lease, move, result))
        if self._write_task is None:
            self._write_task = start_later(self._write_batches(), name="penstock-settler")

    def drop_lost(self, leased: LeasedJob) -> None:
        """Drop a leased job whose lease another worker has: its outcome is not written."""
        self._leased_jobs.remove(leased)
        if not leased.started:
            return
        self._recorder.lease_lost()
        if self._app.events.active:
            spec = leased.job.spec
            self._app.events.emit(
                LateResultRefused(leased.store_now(), spec.id, spec.queue, spec.task, leased.job.attempt)
            )

    def flush(self) -> None:
        """Write collected outcomes now: the event loop has no job left to start."""
        self._write_now.set()

    async def drained(self, timeout: float | None = None) -> bool:
        """Wait until all outcomes are answered. False if that took longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while (under_way := self._write_task or self._repeat_task) is not None:
                    self._write_now.set()
                    await asyncio.shield(under_way)
        except TimeoutError:
            return False
        return True

    async def _write_batches(self) -> None:
        try:
            while self._waiting:
                await self._collect()
                batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                settlements, self._settlements = self._settlements[:_BATCH], self._settlements[_BATCH:]
                await self._send(batch, settlements)
        finally:
            self._write_task = None

    async def _collect(self) -> None:
        self._write_now.clear()
        left = self._oldest + _COLLECT_FOR - time.monotonic()
        if left <= 0 or not self._slots.is_backed_up() or self._waiting[-1].took > _SHORT_ATTEMPT:
            return
        try:
            async with asyncio.timeout(left):
                await self._write_now.wait()
        except TimeoutError:
            pass

    async def _send(self, batch: list[LeasedJob], settlements: list[Settlement]) -> None:
        failures = 0
        if time.monotonic() - self._oldest > _DELAYED:
            self._leased_jobs.drop_deadlines(batch)
        while True:
            try:
                if [leased for leased in batch if leased.has_news or leased.needs_undo]:
                    await self._store_last_progress(batch, settlements)
                    await self._store_last_lines(batch, settlements)
                    await self._begin_undos(batch, settlements)
                answers = await self._settle_batch(batch, settlements)
                if failures:
                    answers = await self._without_false_refusals(batch, settlements, answers)
                break
            except StoreError as error:
                self.failing = True
                self.problem_log.report(f"{len(batch)} outcome(s) wait for the store", error)
                self._leased_jobs.drop_deadlines([*batch, *self._waiting])
                await asyncio.sleep(pause_after(failures, first=0.05))
                failures += 1
        self.failing = False
        self._slots.freed.set()  # fewer outcomes wait
        if Settled.UNKNOWN in answers:
            self._repeat_later(batch, settlements, answers)
        self._answered(batch, settlements, answers)

    def _answered(
        self, batch: list[LeasedJob], settlements: list[Settlement], answers: Sequence[Settled | None]
    ) -> None:
        self._recorder.settled(batch, settlements, answers)
        remove = self._leased_jobs.remove
        emits, calls_back = self._app.events.active, self._app.callbacks.active
        for leased, settlement, answer in zip(batch, settlements, answers, strict=True):
            if answer is Settled.UNKNOWN:
                continue
            remove(leased)
            if answer is None:
                continue
            if answer is not Settled.APPLIED:
                self._refused(leased, answer)
            elif settlement.transition.error is not None:
                _log_failure(leased, settlement.transition)
            if calls_back and answer is Settled.APPLIED:
                self._callback_runner.take(leased.job, settlement.transition, settlement.result)
            if emits:
                self._emit_event(leased, settlement.transition, answer)

    # ── outcomes whose part of the store is unreachable ──────────────────────────────────────────

    def _repeat_later(
        self, batch: list[LeasedJob], settlements: list[Settlement], answers: Sequence[Settled | None]
    ) -> None:
        answered = zip(batch, settlements, answers, strict=True)
        self._deferred += [(leased, one) for leased, one, answer in answered if answer is Settled.UNKNOWN]
        self._leased_jobs.drop_deadlines([leased for leased, _ in self._deferred])
        if self._repeat_task is None:
            self._repeat_task = start_later(self._repeat(), name="penstock-settler")

    async def _repeat(self) -> None:
        """Repeat these outcomes until they are answered. Other outcomes do not wait for them."""
        failures = 0
        try:
            while self._deferred:
                await asyncio.sleep(pause_after(failures, first=0.05))
                failures += 1
                some = self._deferred[:_BATCH]
                batch, settlements = [leased for leased, _ in some], [one for _, one in some]
                try:
                    await self._store_last_progress(batch, settlements)
                    await self._store_last_lines(batch, settlements)
                    answers = await self._settle_batch(batch, settlements)
                    answers = await self._without_false_refusals(batch, settlements, answers)
                except StoreError as error:
                    self.problem_log.report(f"{len(self._deferred)} outcome(s) wait for the store", error)
                    continue
                del self._deferred[: len(some)]
                answered = zip(some, answers, strict=True)
                self._deferred += [one for one, answer in answered if answer is Settled.UNKNOWN]
                self._answered(batch, settlements, answers)
        finally:
            self._repeat_task = None

    async def _without_false_refusals(
        self, batch: list[LeasedJob], settlements: list[Settlement], answers: Sequence[Settled | None]
    ) -> Sequence[Settled | None]:
        """Correct refusals of a repeated settlement that the store had applied the first time."""
        settled = (Settled.APPLIED, Settled.UNKNOWN)
        refused = [place for place, answer in enumerate(answers) if answer not in settled]
        if not refused:
            return answers
        found = list(answers)
        jobs = await self._store.get([batch[place].job.ref for place in refused])
        for place, job in zip(refused, jobs, strict=True):
            if self._was_applied(batch[place], settlements[place].transition, job):
                found[place] = Settled.APPLIED
        return found

    def _was_applied(self, leased: LeasedJob, move: Transition, job: Job | None) -> bool:
        """Whether nobody but this worker can have ended the attempt. `job`: as the store has it now.

        The last fetch and the count of losses would show another worker, the state that it was released. A
        job that is gone shows nothing: only while its lease lasts is it certain that nobody else has run it.
        """
        if job is None:
            return clock.lease_seconds() < leased.held_from + self._lease / 1000
        if job.state is State.RUNNING or (move.state in TERMINAL and not job.ended):
            return False
        return (job.lost, job.fetched_at) == (leased.job.lost, leased.job.fetched_at)

    async def _store_last_progress(self, batch: list[LeasedJob], settlements: list[Settlement]) -> None:
        """Store progress reported after the last heartbeat, for jobs that stay in the store."""
        for leased, one in zip(batch, settlements, strict=True):
            last = leased.progress
            if last is None or last is leased.stored_progress or one.transition.keep <= 0:
                continue
            request = HeartbeatRequest(leased.job.lease, self._lease, started=True, progress=last)
            try:
                if await self._store.extend([request]) == [LeaseStatus.UNKNOWN]:
                    continue  # its part of the store is unreachable: repeated before its settlement is
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001  # boundary: progress that cannot be stored must not block its outcome
                _log.error("job %s: progress could not be stored: %s", leased.job.id, text_of(error))
            leased.stored_progress = last

    async def _begin_undos(self, batch: list[LeasedJob], settlements: list[Settlement]) -> None:
        """Let flows run once more whose steps are not undone, in place of ending them."""
        for place, leased in enumerate(batch):
            if leased.needs_undo:
                move = settlements[place].transition
                try:
                    again = leased.ends_from_outside
                    move = await undo_first(self._store, leased.job, move, self._lease, again=again)
                except StoreError:
                    raise
                except Exception as error:  # noqa: BLE001  # boundary: one flow that cannot be undone must not block the others
                    _log.exception("job %s: its steps are not undone", leased.job.id, extra=_facts(leased))
                    move = replace(move, reason=f"not undone: {text_of(error) or type(error).__name__}"[:300])
                settlements[place] = Settlement(leased.job.lease, move)
                leased.needs_undo = False

    async def _store_last_lines(self, batch: list[LeasedJob], settlements: list[Settlement]) -> None:
        """Store the lines logged after the last heartbeat, for jobs that stay in the store.

        Those that cannot be stored now are lost with the settlement.
        """
        logs = [
            (leased.job.lease, leased.log)
            for leased, one in zip(batch, settlements, strict=True)
            if leased.log is not None
            and leased.log.waits
            and (one.transition.keep > 0 or one.transition.state not in TERMINAL)
        ]
        problems = self.problem_log
        await store_lines(self._store, logs, self._lease, within=_LINES_WITHIN, problem_log=problems)

    async def _settle_batch(
        self, batch: list[LeasedJob], settlements: list[Settlement]
    ) -> Sequence[Settled | None]:
        """Settle all together. If that fails for a reason other than the store, settle each alone."""
        try:
            return await self._store.settle(settlements)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001  # boundary: one outcome that cannot be stored must not block the others
            _log.exception("storing %d outcome(s) together failed; storing each alone", len(batch))
            return [
                await self._settle_alone(leased, settlements, place) for place, leased in enumerate(batch)
            ]

    async def _settle_alone(
        self, leased: LeasedJob, settlements: list[Settlement], place: int
    ) -> Settled | None:
        """Settle one outcome. If the store cannot take it, settle a failure with the reason instead.

        If even that cannot be stored, the outcome is dropped: the lease expires and the job is reclaimed.
        """
        try:
            return (await self._store.settle([settlements[place]]))[0]
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # boundary: as above
            returned = settlements[place].transition.state is State.COMPLETED
            settlements[place] = self._not_stored(leased, error, returned=returned)
        try:
            return (await self._store.settle([settlements[place]]))[0]
        except StoreError:
            raise
        except Exception:  # noqa: BLE001  # boundary: as above
            _log.exception("job %s: the outcome could not be stored", leased.job.id, extra=_facts(leased))
            return None

    def _not_stored(self, leased: LeasedJob, error: Exception, *, returned: bool) -> Settlement:
        """The settlement in place of one that the store cannot take.

        A function that has returned is not run again: the store would not take what it returns then either.
        """
        job, now = leased.job, leased.store_now()
        fact = AttemptError.bounded(job.attempt, now, "OutcomeNotStored", text_of(error))
        return Settlement(job.lease, decided(job, Raised(fact, final=returned), now, self._keep_dead))

    def _refused(self, leased: LeasedJob, answer: Settled) -> None:
        if not leased.started:
            return  # released too late and never started: no outcome is lost
        why = "another worker has the job" if answer is Settled.STALE else "the job is gone"
        _log.warning(
            "job %s (%s, attempt %d): late outcome ignored: %s",
            leased.job.id,
            leased.job.task,
            leased.job.attempt,
            why,
            extra=_facts(leased),
        )

    def _emit_event(self, leased: LeasedJob, move: Transition, answer: Settled) -> None:
        event = event_of(leased.job, move, leased.took)
        if answer is not Settled.APPLIED:
            spec = leased.job.spec
            about = (int(time.time() * 1000), spec.id, spec.queue, spec.task, leased.job.attempt)
            event = LateResultRefused(*about) if leased.started else None
        if event is not None:
            self._app.events.emit(event)


def _log_failure(leased: LeasedJob, move: Transition) -> None:
    assert move.error is not None
    dead = move.state is State.DEAD
    log_with_traceback(
        _log,
        logging.ERROR if dead else logging.WARNING,
        move.error.traceback,
        "job %s (%s, attempt %d of %d) failed: %s: %s; %s",
        leased.job.id,
        leased.job.task,
        leased.job.attempt,
        leased.job.spec.max_attempts,
        move.error.kind,
        move.error.message.split("\n", 1)[0],
        f"dead: {move.reason}" if dead else f"again in {format_ms(move.delay)}",
        extra=_facts(leased),
    )


def _facts(leased: LeasedJob) -> dict[str, object]:
    job = leased.job
    return {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}
