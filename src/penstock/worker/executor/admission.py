"""Decides which leased jobs start, when, and which go back.

A leased job waits until it has a slot. A process task without a free process slot waits in the process
backlog, so that the jobs behind it can start. A job of a flow waits until the results that it takes are read.
A job that waits too long is released to its own position in its queue, because another worker may be idle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from penstock.client.flows.values import InputUnreadable, with_inputs
from penstock.core import clock
from penstock.core.errors import AttemptCancelled, StoreError
from penstock.core.job import Job
from penstock.core.lifecycle import CANNOT_BE_READ, RUNNING_CANCELLED, starts_on_record
from penstock.core.outcomes import Cancelled, QueuePosition, Released, Unknown
from penstock.maintenance.service import Service
from penstock.stores.contract import Store
from penstock.stores.encrypted import unreadable_check
from penstock.worker.executor.attempt import cancelled_unstarted, outcome_of_end
from penstock.worker.executor.runners import Runners
from penstock.worker.leased_jobs import LeasedJob, leased_job_by
from penstock.worker.plan import Plan, Plans
from penstock.worker.setup import WorkerSetup
from penstock.worker.unknown_tasks import UnknownTasks

_log = logging.getLogger("penstock.worker")

#: The plan of a job whose task is unknown.
NO_PLAN = Plan.refused("?", "")


class Admission:
    """Accepts leased jobs and starts them as slots are freed.

    `plans` says how to run the jobs of each task, and `runners` run them.
    """

    def __init__(
        self, setup: WorkerSetup, plans: Plans, runners: Runners, unknown_tasks: UnknownTasks
    ) -> None:
        attempts, store = runners.attempts, setup.app.store
        self.plans = plans
        self.slots = attempts.slots
        self.backlog = attempts.slots.backlog
        #: Reads what jobs of flows take.
        self.flow_inputs = FlowInputs(store, self._inputs_read, self._inputs_gone)
        #: Called when a job of a flow arrives.
        self.on_flow_job: Callable[[], None] = lambda: None
        #: Whether no more jobs start, because the worker drains.
        self.stopping = False
        self._why_unreadable = unreadable_check(store)
        self._attempts = attempts
        self._leased_jobs = attempts.leased_jobs
        self._runners = runners
        self._prefetch = runners.threads.prefetch
        self._processes = runners.processes
        self._unknown_tasks = unknown_tasks
        #: Queues that brought only process tasks with their last fetch.
        self._process_queues: set[str] = set()
        self._lease = attempts.lease
        self._slot_wait = setup.config.slot_wait / 1000
        self._queue_slots = setup.queue_slots
        clock = setup.store_clock
        self._leased_job = LeasedJob if clock is None else leased_job_by(clock)
        self._buffer, self._backlog = self.slots.waiting, self.backlog.jobs
        attempts.start_next = self.start_ready

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    def start_or_buffer(self, jobs: Sequence[Job], fetched: float, now: int) -> None:
        """Start leased jobs that have a slot, and buffer the others.

        `fetched` is `clock.lease_seconds()` before the fetch was sent, `now` the store's clock at the fetch.
        """
        batch: list[LeasedJob] = []
        for job in jobs:
            plan = self.plans.of(job)
            leased = self._leased_job(job, plan or NO_PLAN, fetched, now)
            if job.fetched_at is not None and job.fetched_at > now:
                # counted from now, when the store's clock is at least `now`
                leased.not_before = time.monotonic() + (job.fetched_at - now) / 1000
            if job.expires_at is not None or job.spec.deadline is not None:
                leased.may_be_late = True
            batch.append(leased)
        self._leased_jobs.add(batch, fetched + self._lease)
        if not self._leased_jobs.fetch_arrived():  # the supervisor has given them back
            self._release(batch)
            return
        arrived = time.monotonic()
        for leased in batch:
            leased.arrived = arrived
            try:
                if leased.plan.why_not is not None:
                    self._park(leased, leased.plan.why_not)
                elif (leased.job.spec.payload[2:3] == b"$" or leased.job.members) and self._refuse_unreadable(
                    leased
                ):
                    pass
                elif leased.job.cancel_asked and not leased.switch_to_undo(RUNNING_CANCELLED):
                    self._attempts.refuse(leased, Cancelled(RUNNING_CANCELLED))
                elif self.stopping:
                    self._attempts.refuse(leased, Released())
                elif leased.job.spec.flow is not None and self._takes_inputs(leased):
                    pass
                elif leased.not_before:
                    self.slots.reserve(leased)
                    self._await_start(leased)
                else:
                    self._buffer.append(leased)
            except Exception as error:  # noqa: BLE001  # boundary: the other jobs of the fetch must start
                self._fail(leased, error)
        if self._process_queues or self._backlog or any(one.plan.run_in == "process" for one in batch):
            self._note_kinds(batch)
        self.start_arrived()

    def _park(self, leased: LeasedJob, why: str) -> None:
        """Park a job whose task is unknown (`why` is empty), or cannot run here."""
        if why:
            self._attempts.refuse(leased, Unknown(f"cannot run here: {why}"))
            self._unknown_tasks.report_refused(leased.job, why)
        else:
            self._attempts.refuse(leased, Unknown())
            self._unknown_tasks.report_unknown(leased.job)

    def _fail(self, leased: LeasedJob, error: Exception) -> None:
        """End a job that could not be started: its attempt has failed."""
        _log.error("job %s (%s) could not be started", leased.job.id, leased.job.task, exc_info=error)
        self.slots.reserved.discard(leased)
        if leased in self.slots.attempts:
            self._attempts.end(leased, error)
        elif not leased.over:
            self._attempts.refuse(leased, outcome_of_end(leased, error))

    def _refuse_unreadable(self, leased: LeasedJob) -> bool:
        """Park the job for another worker if its contents cannot be read here; return True if so."""
        why = self._why_unreadable(leased.job)
        if why is None:
            return False
        self._attempts.refuse(leased, Unknown(CANNOT_BE_READ + why))
        self._unknown_tasks.report_unreadable(leased.job, why)
        return True

    def _takes_inputs(self, leased: LeasedJob) -> bool:
        """Whether results of other nodes must be read before this job of a flow can start."""
        self.on_flow_job()
        flow = leased.job.spec.flow
        if flow is None or not flow.inputs:
            return False
        self.slots.reserve(leased)
        self.flow_inputs.read(leased)
        return True

    def _inputs_read(self, leased: LeasedJob) -> None:
        if leased in self.slots.reserved:
            self._await_start(leased)

    def _inputs_gone(self, leased: LeasedJob, error: Exception) -> None:
        if leased not in self.slots.reserved:
            return
        self.slots.reserved.discard(leased)
        if isinstance(error, InputUnreadable):
            self._attempts.refuse(leased, Unknown(CANNOT_BE_READ + str(error)))
            self._unknown_tasks.report_unreadable(leased.job, str(error))
        else:
            self._attempts.refuse(leased, outcome_of_end(leased, error))

    def _await_start(self, leased: LeasedJob) -> None:
        """Start the job at its time, not before: timers may fire early by their resolution."""
        left = leased.not_before - time.monotonic()
        if left > 0:
            asyncio.get_running_loop().call_later(max(0.001, left), self._await_start, leased)
        elif leased in self.slots.reserved:
            self.slots.reserved.discard(leased)
            leased.arrived = time.monotonic()
            self._buffer.appendleft(leased)
            self.start_arrived()

    # ── start ────────────────────────────────────────────────────────────────────────────────────

    def start_arrived(self) -> None:
        """Start leased jobs that have just come; the watch releases those that wait too long."""
        self.start_ready()
        if self._buffer or self._backlog:  # even if no attempt runs
            self.slots.started.set()

    def start_ready(self) -> None:
        """Start leased jobs while there are slots."""
        buffer = self._buffer
        if self._backlog:
            self._start_backlog()
        if buffer and clock.lease_seconds() - buffer[0].fetched > self._lease:
            self._release_overdue()
        if not buffer:
            return
        room, ahead = self.slots.room() - len(self.slots.reserved), self._prefetch.depth
        while buffer and (
            room > 0 or (room > -ahead and self._prefetch.allows(buffer[0])) or self._goes_ahead(buffer[0])
        ):
            leased = buffer.popleft()
            if leased.plan.run_in != "process":
                room -= self._start(leased)
            elif not self._backlog and self._fits(leased):
                self._start(leased)
                room = self.slots.room() - len(self.slots.reserved)
            elif not self.backlog.put(leased, time.monotonic()):
                self._attempts.refuse(leased, Released(QueuePosition.OWN))

    def _start_backlog(self) -> None:
        """Start process tasks of the backlog while children have room.

        Jobs of the backlog are older than the buffer's.
        """
        backlog, slots = self.backlog, self.slots
        while backlog and (slots.room() > len(slots.reserved) or self._goes_ahead(backlog.jobs[0])):
            leased = backlog.take(self._leased_jobs.per_queue, self._queue_slots, self._fits)
            if leased is None:
                return
            if clock.lease_seconds() - leased.fetched > self._lease:
                self._attempts.refuse(leased, Released(QueuePosition.OWN))
            else:
                self._start(leased)

    def _start(self, leased: LeasedJob) -> bool:
        """Start a job; False if it has ended instead."""
        job = leased.job
        try:
            if leased.interrupt is not None:  # a heartbeat found it cancelled or lost while it waited
                self._drop(leased)
                return False
            if leased.may_be_late and (late := leased.too_late()):
                self._attempts.refuse(leased, late)
                return False
            if starts_on_record(job):
                self.slots.take(leased, False)
                self._runners.launch_on_record(leased)
            else:
                self.slots.take(leased, leased.plan.in_thread)
                self._runners.launch(leased)
        except Exception as error:  # noqa: BLE001  # boundary: the jobs behind it must start
            self._fail(leased, error)
            return False
        return True

    def _drop(self, leased: LeasedJob) -> None:
        """End a job that was cancelled, or lost to another worker, before it started."""
        if leased.interrupt is AttemptCancelled:
            self._attempts.refuse(leased, cancelled_unstarted(leased))
        else:
            self._attempts.forget(leased)
            self._leased_jobs.remove(leased)

    def _fits(self, leased: LeasedJob) -> bool:
        """Whether a child has room for this process task."""
        return not self._processes.lacks_resources() and self._processes.has_room(
            leased, self.slots.process_busy
        )

    def _goes_ahead(self, leased: LeasedJob) -> bool:
        """Whether the job needs no slot: all process slots are in use, and it would lie ready behind them."""
        return leased.plan.run_in == "process" and self.slots.process_busy >= self.slots.process_slots

    def _note_kinds(self, batch: Sequence[LeasedJob]) -> None:
        """Note which queues have brought nothing but process tasks, and which other jobs."""
        for leased in batch:
            if leased.plan.run_in == "process":
                self._process_queues.add(leased.job.spec.queue)
        for queue in {leased.job.spec.queue for leased in batch if leased.plan.run_in != "process"}:
            self._process_queues.discard(queue)
            if self._backlog:
                self.backlog.note_other_job(queue)

    # ── back ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def waiting(self) -> bool:
        """Whether leased jobs wait for a slot, for their time or for results of their flow."""
        return self.slots.buffered > 0 or len(self.backlog) > 0 or bool(self.slots.reserved)

    def caps(self) -> dict[str, int]:
        """How many jobs to fetch at most from queues with process tasks at their head."""
        short = self._processes.fetchable() if self._process_queues else None
        slots = self.slots
        free = short or max(0, slots.process_slots - slots.process_busy)
        if self._processes.lacks_resources() or (short and self.backlog.looks_only_at(self._process_queues)):
            free = 0  # a queue of nothing but process tasks keeps its pause between two looks
        caps = self.backlog.caps(free, time.monotonic())
        if short is not None:
            for queue in self._process_queues:
                caps[queue] = 0 if self._backlog else short
        return caps

    def free_slots(self) -> dict[str, int]:
        """Free process slots, for each queue that brought only process tasks with its last fetch.

        A queue with limits gives a worker no more at a time, so that other workers get their share.
        """
        if not self._process_queues:
            return {}
        free = max(1, self.slots.process_slots - self.slots.process_busy)
        return dict.fromkeys(self._process_queues, free)

    def release_unproductive(self, queues: Iterable[str]) -> None:
        """Release process tasks of queues whose last fetch brought nothing else to start."""
        if self.backlog:
            self._release(self.backlog.release_unproductive(queues, time.monotonic()))

    def release_late(self, now: float) -> None:
        """Release jobs that have waited for a slot for `slot_wait`. `now` is monotonic."""
        if self._buffer and now - self._buffer[0].arrived >= self._slot_wait:
            batch = list(self._buffer)
            self._buffer.clear()
            for leased in batch:
                if now - leased.arrived < self._slot_wait:
                    self._buffer.append(leased)
                else:
                    self._attempts.refuse(leased, Released(QueuePosition.OWN))
        if self.backlog:
            self._release(self.backlog.overdue(now))

    def stop(self) -> None:
        """Start no more jobs, and release those that have not started."""
        self.stopping = True
        self._buffer.extendleft(self.slots.reserved)
        self.slots.reserved.clear()
        self._buffer.extendleft(reversed(self.backlog.take_all()))
        while self._buffer:
            self._attempts.refuse(self._buffer.popleft(), Released())

    def _release(self, batch: Sequence[LeasedJob]) -> None:
        for leased in batch:
            self._attempts.refuse(leased, Released(QueuePosition.OWN))
        if batch:
            self.slots.freed.set()  # the fetcher may ask these queues again soon

    def _release_overdue(self) -> None:
        """Release jobs whose lease may have expired while this process was suspended: other workers may have
        run them."""
        overdue = clock.lease_seconds() - self._lease
        while self._buffer and self._buffer[0].fetched < overdue:
            self._attempts.refuse(self._buffer.popleft(), Released(QueuePosition.OWN))


# ── results that jobs of flows take ──────────────────────────────────────────────────────────────

_IDLE = 3_600.0


class FlowInputs(Service):
    """Completes the arguments of leased jobs; they start when their results were read."""

    name = "flow inputs"

    def __init__(
        self,
        store: Store,
        on_ready: Callable[[LeasedJob], None],
        on_failed: Callable[[LeasedJob, Exception], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._waiting: deque[LeasedJob] = deque()

    def read(self, leased: LeasedJob) -> None:
        """Read the inputs of this job, then call `on_ready`."""
        self._waiting.append(leased)
        self.wake()

    async def tick(self) -> float:
        unanswered: StoreError | None = None
        for _ in range(len(self._waiting)):
            if not self._waiting:
                break
            leased = self._waiting.popleft()
            try:
                leased.job = await with_inputs(self._store, leased.job)
            except StoreError as error:  # perhaps only of the slots of this flow: the others need not wait
                self._waiting.append(leased)
                unanswered = error
                if self._stopping:
                    break
            except Exception as error:  # noqa: BLE001  # boundary: of this job alone; the others need not wait
                self._on_failed(leased, error)
            else:
                for one in (leased, *self._take_same(leased)):
                    one.job = replace(one.job, spec=leased.job.spec)
                    self._on_ready(one)
        if unanswered is not None:
            raise unanswered  # tried again after a pause
        return 0.0 if self._waiting else _IDLE

    def _take_same(self, leased: LeasedJob) -> list[LeasedJob]:
        """Take further leases of the same job.

        The supervisor releases what has not started while this process is short of CPU: a job whose results
        take long to read would otherwise be read and released for ever.
        """
        of = (leased.job.spec.queue, leased.job.spec.id, leased.job.generation)
        same = [
            one for one in self._waiting if (one.job.spec.queue, one.job.spec.id, one.job.generation) == of
        ]
        for one in same:
            self._waiting.remove(one)
        return same
