"""Decides which leased jobs start, when, and which go back.

A leased job waits until it has a slot. A process task without a free process slot waits in the process
backlog, so that the jobs behind it can start. A job that waits too long is released to its own position in
its queue, because another worker may be idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.app.app import App
from penstock.client.flows.inputs import InputUnreadable
from penstock.client.options import Options
from penstock.core import clock
from penstock.core.errors import AttemptCancelled, Undecodable
from penstock.core.job import Job
from penstock.core.lifecycle import ASK_CANCELLED, CANNOT_BE_READ, QueuePosition, starts_on_record, too_late
from penstock.core.outcomes import Cancelled, Released, Unknown
from penstock.stores.encrypted import unreadable_check
from penstock.worker.executor.flow_inputs import FlowInputs
from penstock.worker.executor.outcome_reporter import OutcomeReporter
from penstock.worker.executor.outcomes import outcome_of_end
from penstock.worker.executor.process_attempts import ProcessAttempts
from penstock.worker.executor.process_backlog import ProcessBacklog
from penstock.worker.executor.recorded_start import RecordedStart
from penstock.worker.executor.runners import Runners
from penstock.worker.executor.slots import Slots
from penstock.worker.executor.thread_prefetch import ThreadPrefetch
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs
from penstock.worker.plan import Plan, Plans
from penstock.worker.unknown_tasks import UnknownTasks

__all__ = ["NO_PLAN", "Admission"]

#: The plan of a job whose task is unknown.
NO_PLAN = Plan("?", lambda: None, "async", lambda _: ((), {}), None, (), Options(), ("", ""))


class Admission:
    """Accepts leased jobs and starts them as slots are freed.

    `lease` and `slot_wait` are in seconds. `queue_slots` limits the jobs of a queue that run at the same
    time.
    """

    def __init__(
        self,
        app: App,
        leased_jobs: LeasedJobs,
        slots: Slots,
        prefetch: ThreadPrefetch,
        outcomes: OutcomeReporter,
        unknown_tasks: UnknownTasks,
        runners: Runners,
        recorded: RecordedStart,
        *,
        processes: ProcessAttempts,
        lease: float,
        slot_wait: float,
        queue_slots: Mapping[str, int],
    ) -> None:
        self._plans = Plans(app, int(lease * 1000))
        #: Reads what jobs of flows take.
        self.flow_inputs = FlowInputs(app.store, self._inputs_read, self._inputs_gone)
        #: Called when a job of a flow arrives.
        self.on_flow_job: Callable[[], None] = lambda: None
        self._why_unreadable = unreadable_check(app.store)
        self._leased_jobs = leased_jobs
        self._slots = slots
        self._prefetch = prefetch
        self._outcomes = outcomes
        self._unknown_tasks = unknown_tasks
        self._runners = runners
        self._recorded = recorded
        self._processes = processes
        #: Queues that brought only process tasks with their last fetch.
        self._process_queues: set[str] = set()
        self._lease = lease
        self._slot_wait = slot_wait
        self._queue_slots = queue_slots
        #: Whether no more jobs start, because the worker drains.
        self.stopping = False
        self._buffer = slots.waiting
        #: Process tasks that wait for a process slot.
        self.backlog = ProcessBacklog()
        self._backlog = self.backlog.jobs

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    def start_or_buffer(self, jobs: Sequence[Job], fetched: float, now: int) -> None:
        """Start leased jobs that have a slot, and buffer the others.

        `fetched` is `clock.lease_seconds()` before the fetch was sent, `now` the store's clock at the fetch.
        """
        batch: list[LeasedJob] = []
        for job in jobs:
            plan = self._plans.of(job)
            leased = LeasedJob(job, plan or NO_PLAN, fetched, now)
            if job.fetched_at is not None and job.fetched_at > now:
                # counted from now, when the store's clock is at least `now`
                leased.not_before = time.monotonic() + (job.fetched_at - now) / 1000
            batch.append(leased)
        self._leased_jobs.add(batch, fetched + self._lease)
        arrived = time.monotonic()
        for leased in batch:
            leased.arrived = arrived
            if leased.plan is NO_PLAN:
                self._outcomes.refuse(leased, Unknown())
                self._unknown_tasks.report_unknown(leased.job)
            elif (leased.job.spec.payload[2:3] == b"$" or leased.job.members) and self._is_closed(leased):
                pass
            elif leased.job.cancel_asked:
                self._outcomes.refuse(leased, Cancelled("cancelled while running"))
            elif self.stopping:
                self._outcomes.refuse(leased, Released())
            elif leased.job.spec.flow is not None and self._takes_inputs(leased):
                pass
            elif leased.not_before:
                self._slots.reserve(leased)
                self._await_start(leased)
            else:
                self._buffer.append(leased)
        if self._process_queues or self._backlog or any(one.plan.run_in == "process" for one in batch):
            self._note_kinds(batch)
        self.start_ready()

    def _is_closed(self, leased: LeasedJob) -> bool:
        """Whether the job's contents cannot be read here; if so, it is parked for another worker."""
        why = self._why_unreadable(leased.job)
        if why is None:
            return False
        self._outcomes.refuse(leased, Unknown(CANNOT_BE_READ + why))
        self._unknown_tasks.report_unreadable(leased.job, why)
        return True

    def _takes_inputs(self, leased: LeasedJob) -> bool:
        """Whether results of other nodes must be read before this job of a flow can start."""
        self.on_flow_job()
        flow = leased.job.spec.flow
        if flow is None or not flow.inputs:
            return False
        self._slots.reserve(leased)
        self.flow_inputs.read(leased)
        return True

    def _inputs_read(self, leased: LeasedJob) -> None:
        if leased in self._slots.reserved:
            self._await_start(leased)

    def _inputs_gone(self, leased: LeasedJob, error: Undecodable | InputUnreadable) -> None:
        if leased not in self._slots.reserved:
            return
        self._slots.reserved.discard(leased)
        if isinstance(error, InputUnreadable):
            self._outcomes.refuse(leased, Unknown(CANNOT_BE_READ + str(error)))
            self._unknown_tasks.report_unreadable(leased.job, str(error))
        else:
            self._outcomes.refuse(leased, outcome_of_end(leased, error))

    def _await_start(self, leased: LeasedJob) -> None:
        """Start the job at its time, not before: timers may fire early by their resolution."""
        left = leased.not_before - time.monotonic()
        if left > 0:
            asyncio.get_running_loop().call_later(max(0.001, left), self._await_start, leased)
        elif leased in self._slots.reserved:
            self._slots.reserved.discard(leased)
            leased.arrived = time.monotonic()
            self._buffer.appendleft(leased)
            self.start_ready()

    # ── start ────────────────────────────────────────────────────────────────────────────────────

    def start_ready(self) -> None:
        """Start leased jobs while there are slots."""
        buffer = self._buffer
        if self._backlog:
            self._start_backlog()
        if buffer and clock.lease_seconds() - buffer[0].fetched > self._lease:
            self._release_overdue()
        if not buffer:
            return
        room, ahead = self._slots.room() - len(self._slots.reserved), self._prefetch.depth
        while buffer and (
            room > 0 or (room > -ahead and self._prefetch.allows(buffer[0])) or self._goes_ahead(buffer[0])
        ):
            leased = buffer.popleft()
            if leased.plan.run_in != "process":
                room -= self._start(leased)
            elif not self._backlog and self._fits(leased):
                self._start(leased)
                room = self._slots.room() - len(self._slots.reserved)
            elif not self.backlog.put(leased, time.monotonic()):
                self._outcomes.refuse(leased, Released(QueuePosition.OWN))

    def _start_backlog(self) -> None:
        """Start process tasks of the backlog while children have room.

        Jobs of the backlog are older than the buffer's.
        """
        backlog, slots = self.backlog, self._slots
        while backlog and (slots.room() > len(slots.reserved) or self._goes_ahead(backlog.jobs[0])):
            leased = backlog.take(self._leased_jobs.per_queue, self._queue_slots, self._fits)
            if leased is None:
                return
            if clock.lease_seconds() - leased.fetched > self._lease:
                self._outcomes.refuse(leased, Released(QueuePosition.OWN))
            else:
                self._start(leased)

    def _start(self, leased: LeasedJob) -> bool:
        job = leased.job
        if leased.interrupt is not None:  # a heartbeat found it cancelled or lost while it waited
            self._drop(leased)
            return False
        if job.expires_at is not None or job.spec.deadline is not None:
            late = too_late(job, leased.store_now())
            if late is not None:
                self._outcomes.refuse(leased, late)
                return False
        if starts_on_record(job):
            self._slots.take(leased, False)
            self._recorded.start(leased)
        else:
            self._slots.take(leased, leased.plan.in_thread)
            self._runners.launch(leased)
        return True

    def _drop(self, leased: LeasedJob) -> None:
        """End a job that was cancelled, or lost to another worker, before it started."""
        if leased.interrupt is AttemptCancelled:
            self._outcomes.refuse(leased, Cancelled(ASK_CANCELLED))
        else:
            self._outcomes.forget(leased)
            self._leased_jobs.remove(leased)

    def _fits(self, leased: LeasedJob) -> bool:
        """Whether a child has room for this process task."""
        return not self._processes.lacks_resources() and self._processes.has_room(
            leased, self._slots.process_busy
        )

    def _goes_ahead(self, leased: LeasedJob) -> bool:
        """Whether the job needs no slot: all process slots are in use, and it would lie ready behind them."""
        return leased.plan.run_in == "process" and self._slots.process_busy >= self._slots.process_slots

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
        return self._slots.buffered > 0 or len(self.backlog) > 0 or bool(self._slots.reserved)

    def caps(self) -> dict[str, int]:
        """How many jobs to fetch at most from queues with process tasks at their head."""
        short = self._processes.fetchable() if self._process_queues else None
        slots = self._slots
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
        free = max(1, self._slots.process_slots - self._slots.process_busy)
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
                    self._outcomes.refuse(leased, Released(QueuePosition.OWN))
        if self.backlog:
            self._release(self.backlog.overdue(now))

    def stop(self) -> None:
        """Start no more jobs, and release those that have not started."""
        self.stopping = True
        self._buffer.extendleft(self._slots.reserved)
        self._slots.reserved.clear()
        self._buffer.extendleft(reversed(self.backlog.take_all()))
        while self._buffer:
            self._outcomes.refuse(self._buffer.popleft(), Released())

    def _release(self, batch: Sequence[LeasedJob]) -> None:
        for leased in batch:
            self._outcomes.refuse(leased, Released(QueuePosition.OWN))
        if batch:
            self._slots.freed.set()  # the fetcher may ask these queues again soon

    def _release_overdue(self) -> None:
        """Release jobs whose lease may have expired while this process was suspended: other workers may have
        run them."""
        overdue = clock.lease_seconds() - self._lease
        while self._buffer and self._buffer[0].fetched < overdue:
            self._outcomes.refuse(self._buffer.popleft(), Released(QueuePosition.OWN))
