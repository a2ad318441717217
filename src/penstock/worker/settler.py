"""Puts outcomes into the store, together, and does not rest until each is answered.

While the loop still has jobs to start, outcomes wait for each other, at most `_PATIENCE`: a write in
the middle of a burst of short jobs would only contend with them. An outcome that the store could not
take is kept and sent again; the fetcher starts nothing more while too many wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from penstock.app import App
from penstock.errors import StoreError
from penstock.events import (
    JobCancelledEvent,
    JobCompleted,
    JobDied,
    JobFailed,
    JobReleased,
    JobSnoozed,
    LateResultRefused,
)
from penstock.job import Job, State
from penstock.lifecycle import Transition
from penstock.store import Settled, Settlement, Store
from penstock.upkeep.service import Complaint, pause_after
from penstock.worker.hold import Hold, Holdings

__all__ = ["Settler"]

_log = logging.getLogger("penstock.worker")
#: How long an outcome may wait for company while the worker is busy starting jobs (s).
_PATIENCE = 0.005
#: ... and its attempts are shorter than this (s): what has ended but is not written down runs again if we
#: die.
_SHORT = 0.0005
_BATCH = 2_000


class Settler:
    """Collects settlements and writes them, one batch in flight."""

    def __init__(
        self,
        store: Store,
        app: App,
        holdings: Holdings,
        *,
        busy: Callable[[], bool],
        on_answer: Callable[[], None] = lambda: None,
        on_applied: Callable[[Job, Transition, bytes | None], None] = lambda *_: None,
    ) -> None:
        self._store = store
        self._app = app
        self._holdings = holdings
        self._busy = busy  # whether jobs are ready to start at once
        self._on_answer = on_answer  # what waits is fewer
        self._on_applied = on_applied  # only if the app has callbacks
        self._waiting: list[Hold] = []
        self._endings: list[Settlement] = []  # theirs: pairs would be work for the garbage collector
        self._oldest = 0.0
        self._flight: asyncio.Task[None] | None = None
        self._go = asyncio.Event()
        self.complaint = Complaint(_log)
        #: True while the store refuses outcomes.
        self.failing = False

    @property
    def unsent(self) -> int:
        return len(self._waiting)

    def settle(self, hold: Hold, move: Transition, result: bytes | None) -> None:
        """Write this end down with the next batch."""
        if not self._waiting:
            self._oldest = time.monotonic()
        self._waiting.append(hold)
        self._endings.append(Settlement(hold.job.lease, move, result))
        if self._flight is None:
            self._flight = asyncio.get_running_loop().create_task(self._fly(), name="penstock-settler")

    def hurry(self) -> None:
        """The loop has nothing left to start: what waits may go."""
        self._go.set()

    async def drained(self, timeout: float | None = None) -> bool:
        """Wait until all is answered; False if the store did not answer within the timeout (s)."""
        try:
            async with asyncio.timeout(timeout):
                while self._flight is not None:
                    self._go.set()
                    await asyncio.shield(self._flight)
        except TimeoutError:
            return False
        return True

    async def _fly(self) -> None:
        try:
            while self._waiting:
                await self._company()
                holds, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                settlements, self._endings = self._endings[:_BATCH], self._endings[_BATCH:]
                await self._send(holds, settlements)
        finally:
            self._flight = None

    async def _company(self) -> None:
        self._go.clear()
        left = self._oldest + _PATIENCE - time.monotonic()
        if left <= 0 or not self._busy() or self._waiting[-1].took > _SHORT:
            return
        try:
            async with asyncio.timeout(left):
                await self._go.wait()
        except TimeoutError:
            pass

    async def _send(self, holds: list[Hold], settlements: list[Settlement]) -> None:
        failures = 0
        while True:
            try:
                answers: Sequence[Settled | None] = await self._store.settle(settlements)
                if failures:
                    answers = await self._reconsidered(holds, answers)
                break
            except StoreError as error:
                self.failing = True
                self.complaint.about(f"{len(holds)} outcome(s) wait for the store", error)
                await asyncio.sleep(pause_after(failures, first=0.05))
                failures += 1
            except Exception:  # noqa: BLE001  # boundary: one outcome that no store can take must not hold up the others
                _log.exception("%d outcome(s) together could not be stored; each on its own", len(holds))
                answers = await self._one_by_one(holds, settlements)
                break
        self.failing = False
        self._on_answer()
        remove = self._holdings.remove
        tell, calls_back = self._app.events.active, self._app.callbacks.active
        for hold, settlement, answer in zip(holds, settlements, answers, strict=True):
            remove(hold)
            if answer is None:
                continue
            if answer is not Settled.APPLIED:
                self._refused(hold, answer)
            elif settlement.transition.error is not None:
                _log_failure(hold, settlement.transition)
            if calls_back and answer is Settled.APPLIED:
                self._on_applied(hold.job, settlement.transition, settlement.result)
            if tell:
                self._tell(hold, settlement.transition, answer)

    async def _reconsidered(
        self, holds: list[Hold], answers: Sequence[Settled | None]
    ) -> Sequence[Settled | None]:
        """A store that did not answer may have done all the same what it refuses to do again.

        That nobody has taken the job from us in between shows by its count of losses.
        """
        refused = [place for place, answer in enumerate(answers) if answer is not Settled.APPLIED]
        if not refused:
            return answers
        found = list(answers)
        jobs = await self._store.get([holds[place].job.ref for place in refused])
        for place, job in zip(refused, jobs, strict=True):
            mine = holds[place].job
            if job is None or (job.state is not State.RUNNING and job.lost == mine.lost):
                found[place] = Settled.APPLIED
        return found

    async def _one_by_one(self, holds: list[Hold], settlements: list[Settlement]) -> list[Settled | None]:
        """What the store chokes on is let go: its lease runs out, and the reclaimer judges it."""
        answers: list[Settled | None] = []
        for hold, settlement in zip(holds, settlements, strict=True):
            try:
                answers += await self._store.settle([settlement])
            except Exception:  # noqa: BLE001  # boundary: as above
                _log.exception("job %s: its outcome cannot be stored", hold.job.id, extra=_facts(hold))
                answers.append(None)
        return answers

    def _refused(self, hold: Hold, answer: Settled) -> None:
        if not hold.started:
            return  # given back too late, and never begun: there is no outcome that could be missed
        why = "another worker has it now" if answer is Settled.STALE else "it is gone"
        _log.warning(
            "job %s (%s, attempt %d): its late outcome changed nothing, %s",
            hold.job.id,
            hold.job.task,
            hold.job.attempt,
            why,
            extra=_facts(hold),
        )

    def _tell(self, hold: Hold, move: Transition, answer: Settled) -> None:
        spec = hold.job.spec
        about = (int(time.time() * 1000), spec.id, spec.queue, spec.task, hold.job.attempt)
        emit = self._app.events.emit
        error = "" if move.error is None else f"{move.error.kind}: {move.error.message}"
        if answer is not Settled.APPLIED:
            if hold.started:
                emit(LateResultRefused(*about))
        elif move.state is State.COMPLETED:
            emit(JobCompleted(*about, seconds=hold.took))
        elif move.state is State.DEAD:
            emit(JobDied(*about, error=error or (move.reason or "")))
        elif move.state is State.CANCELLED:
            emit(JobCancelledEvent(*about, reason=move.reason or ""))
        elif move.error is not None:
            emit(JobFailed(*about, error=error, delay=move.delay))
        elif move.hold or move.hold_lane:
            emit(JobSnoozed(*about, delay=move.hold or move.hold_lane))
        elif move.state in (State.SCHEDULED, State.RETRYABLE):  # the latter by what is no failure
            emit(JobSnoozed(*about, delay=move.delay))
        elif move.state is not State.PARKED:  # of that TaskUnknown has told
            emit(JobReleased(*about))


def _log_failure(hold: Hold, move: Transition) -> None:
    assert move.error is not None
    dead = move.state is State.DEAD
    _log.log(
        logging.ERROR if dead else logging.WARNING,
        "job %s (%s, attempt %d of %d) failed: %s: %s; %s",
        hold.job.id,
        hold.job.task,
        hold.job.attempt,
        hold.job.spec.max_attempts,
        move.error.kind,
        move.error.message.split("\n", 1)[0],
        f"dead: {move.reason}" if dead else f"again in {move.delay / 1000:.3g} s",
        extra=_facts(hold),
    )


def _facts(hold: Hold) -> dict[str, object]:
    job = hold.job
    return {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}
