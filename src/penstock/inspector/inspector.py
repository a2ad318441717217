"""Queries and operations of an operator, for any store."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import islice

from msgspec.structs import asdict, replace

from penstock.core.errors import ConfigError
from penstock.core.ids import check_queue
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.limits import LIMIT_NAMES, LimitChange, limits_reset
from penstock.core.portable import in_process
from penstock.core.schedule import Entry, NewEntry
from penstock.inspector.audit import EVERY_ACT, AuditFilter, AuditLog, AuditPage
from penstock.inspector.bulk_acts import BulkActs
from penstock.inspector.entries import (
    EntryPageView,
    EntryRunsView,
    EntryView,
    entry_view,
    entry_views,
    read_runs,
    trigger,
)
from penstock.inspector.fleet_checks import check_fleet
from penstock.inspector.flow_inspector import FlowInspector
from penstock.inspector.job_acts import Change, JobAct, JobActs, every_state
from penstock.inspector.job_edits import edit_job, retry_edited
from penstock.inspector.job_filters import parse_address
from penstock.inspector.job_search import JobSearch, SearchProgress, StartedBatchesView, started_batches
from penstock.inspector.job_search import search as search_steps
from penstock.inspector.job_views import JobView, row_of
from penstock.inspector.overview import Overview, read_overview
from penstock.inspector.queue_views import (
    ParkedView,
    QueueView,
    parked_views,
    queue_view,
    queue_views,
)
from penstock.inspector.reach import apply_within
from penstock.inspector.reasons import WhyView, holders, stopped_by, why
from penstock.inspector.statistics import StatsInspector
from penstock.inspector.undo import UndoStep, undo, undo_step
from penstock.inspector.worker_views import WorkerView, with_jobs
from penstock.stores.contract import (
    BatchInfo,
    Capability,
    Finding,
    JobFilter,
    PartitionInfo,
    QueueStats,
    Store,
    Timetable,
    WorkerInfo,
)
from penstock.stores.encrypted import unreadable_check
from penstock.stores.job_log import is_log, lines_of, log_and_steps
from penstock.stores.job_matcher import JobMatcher
from penstock.stores.worker_commands import BULK_ACTS, SHARED_ACTS, CommandChannel, SentCommand, parse_act

_PURGED_AT_ONCE = 10_000
_WITHOUT_RUNNING = every_state(JobAct.DELETE)


@in_process("make an inspector there")
class Inspector:
    """The operator's methods; every interface offers exactly these.

    Loads at most one page of jobs at a time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        #: The operator's methods for flows.
        self.flows = FlowInspector(store)
        #: The operator's methods for acts on all jobs that match a filter.
        self.bulk = BulkActs(store)
        #: The operator's methods for statistics and groups of errors.
        self.statistics = StatsInspector(store)

    # jobs

    def search(
        self, search: JobSearch, *, after: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[SearchProgress, None]:
        """The steps of a search: what each found, and how far it is. Close the generator to stop early."""
        return search_steps(self._store, search, after=after, limit=limit)

    async def job(self, address: str) -> list[JobView]:
        """The job of a "queue/id"; for a bare id, the jobs with that id in all queues.

        Empty if there is none. Without its log, steps or acts on a store that does not keep those.
        """
        can, unreadable = self._store.can, unreadable_check(self._store)
        return [
            JobView(
                **asdict(replace(job, token=None, checkpoint=None)),
                partition=await self._partition(job),
                closed=unreadable(job),
                steps=[step for step in steps if not is_log(step)],
                log=lines_of(steps),
                acts=await AuditLog(self._store).of_job(job.ref) if can(Capability.DOCUMENTS) else [],
            )
            for job in await self._jobs_at(address)
            for steps in [await log_and_steps(self._store, job.ref) if can(Capability.STEPS) else []]
        ]

    async def why(self, address: str) -> list[WhyView]:
        """Why the jobs at this address do not run now, from the rules of the store."""
        return [await why(self._store, job) for job in await self._jobs_at(address)]

    async def rows(self, refs: Sequence[Ref]) -> list[Job | None]:
        """These jobs, as lists show them; None for one that does not exist."""
        return [None if job is None else row_of(job) for job in await self._store.get(refs)]

    async def matching(self, filter: JobFilter, refs: Sequence[Ref]) -> list[Job]:
        """Those of these jobs that match a filter, as lists show them."""
        matcher = JobMatcher(filter)
        jobs = await self._store.get(refs)
        return [row_of(job) for job in jobs if job is not None and matcher.matches(job)]

    async def refs(self, address: str) -> list[Ref]:
        """The jobs of an address: one for "queue/id", the jobs with that id in all queues for a bare id."""
        found = parse_address(address)
        return [found] if isinstance(found, Ref) else [job.ref for job in await self._store.find(found)]

    async def act(
        self,
        act: JobAct,
        refs: Sequence[Ref],
        *,
        delay: int = 0,
        run_at: int | None = None,
        to: str = "",
        reason: str = "",
        result: str = "",
        spare_at_most_once: bool = False,
        within: Sequence[str] | None = None,
    ) -> list[Change]:
        """Do an act to jobs.

        `delay` (ms) or `run_at` (an instant in ms) is for RESCHEDULE, `to` (a queue) for MOVE, `reason` for
        DISCARD, COMPLETE and CANCEL, `result` (JSON; none if it is empty) for COMPLETE.
        `spare_at_most_once`: RETRY and DUPLICATE refuse at-most-once jobs that have started.

        `within`: the queues whose jobs may change, `*` in a name stands for any characters; None: all. An act
        that would change jobs of other queues, through a flow, is refused.

        Acts on all jobs that match a filter are in `bulk`.
        """
        acts = JobActs(
            self._store,
            delay=delay,
            run_at=run_at,
            to=to,
            reason=reason,
            result=result,
            spare_at_most_once=spare_at_most_once,
        )
        return await apply_within(self._store, acts, act, refs, within)

    async def retry(self, refs: Sequence[Ref]) -> list[Change]:
        """Make ended or queued jobs available now, with all their attempts."""
        return await self.act(JobAct.RETRY, refs)

    async def cancel(self, refs: Sequence[Ref]) -> list[Change]:
        """Cancel queued jobs, and ask running ones to stop."""
        return await self.act(JobAct.CANCEL, refs)

    async def delete(self, refs: Sequence[Ref]) -> list[Change]:
        """Delete jobs in any state except running."""
        return await self.act(JobAct.DELETE, refs)

    async def reschedule(self, refs: Sequence[Ref], *, delay: int = 0) -> list[Change]:
        """Make queued jobs due in `delay` ms."""
        return await self.act(JobAct.RESCHEDULE, refs, delay=delay)

    async def discard(self, refs: Sequence[Ref], *, reason: str = "") -> list[Change]:
        """Make queued and suspended jobs dead."""
        return await self.act(JobAct.DISCARD, refs, reason=reason)

    async def complete(self, refs: Sequence[Ref], *, result: str = "", reason: str = "") -> list[Change]:
        """Complete jobs that are not running, as if their function had returned `result` (JSON)."""
        return await self.act(JobAct.COMPLETE, refs, result=result, reason=reason)

    async def move(self, refs: Sequence[Ref], to: str) -> list[Change]:
        """Move queued jobs to another queue, each exactly once."""
        return await self.act(JobAct.MOVE, refs, to=to)

    async def edit(self, ref: Ref, rewrite: Callable[[Job], NewJob], *, version: str | None = None) -> Change:
        """Give a queued job the arguments of `rewrite(job)`, which may raise ArgumentError.

        `version`: refuse a job whose arguments have changed since it had this `JobView.version`.
        """
        return await edit_job(self._store, ref, rewrite, version=version)

    async def edit_and_retry(
        self, ref: Ref, rewrite: Callable[[Job], NewJob], *, version: str | None = None, nonce: str = ""
    ) -> Change:
        """As `edit`, and make the job available now, with all its attempts.

        An ended job gets a copy with a new id, which the change names; unless it was completed, the copy
        replaces it. `nonce`: a random text; two requests with the same one and the same arguments make
        one copy.
        """
        return await retry_edited(self._store, ref, rewrite, version=version, nonce=nonce)

    async def prepare_undo(self, act: JobAct, refs: Sequence[Ref], *, to: str = "") -> list[UndoStep]:
        """What would take this act back, asked before it is done; `to`: the queue of a MOVE.

        Only for jobs that are afterwards as they were before: see `UndoStep`.
        """
        jobs = await self._store.get(refs)
        steps = [undo_step(act, job, to=to) for job in jobs if job is not None]
        return [step for step in steps if step is not None]

    async def undo(self, steps: Sequence[UndoStep]) -> list[Change]:
        """Take an act back for jobs that nothing has changed since."""
        return await undo(self._store, steps)

    # batches

    async def batches(self, queue: str | None = None, *, limit: int = 50) -> list[BatchInfo]:
        """Batches that are still collecting, of one queue or of all; those due first come first."""
        return await self._store.batches(queue, limit=limit)

    async def flush_batch(self, queue: str, task: str, key: str = "") -> str | None:
        """Start a collecting batch now and return its id; None if there is none."""
        return await self._store.flush_batch(queue, task=task, key=key)

    async def started_batches(
        self, *, after: str | None = None, limit: int = 50, queues: Sequence[str] = ()
    ) -> StartedBatchesView:
        """Batches that have started, of these queues or of all, newest first.

        Each call passes a bounded number of jobs.

        So it may find few or none before the end: only `next` is None tells the end.
        """
        return await started_batches(self._store, after, limit, queues)

    # queues

    async def queues(self) -> list[QueueView]:
        """All queues, by name, with the number of workers that fetch their jobs."""
        return queue_views(await self._store.queues(), await self._workers())

    async def queue(self, name: str) -> QueueView | None:
        """One queue, with what keeps it from starting jobs; None if there is none of this name."""
        infos = await self._store.queues([name])
        if not infos:
            return None
        return replace(
            queue_views(infos, await self._workers())[0],
            held_by=tuple(await holders(self._store, infos[0])),
            stopped_by=await stopped_by(self._store, infos[0]),
        )

    async def _workers(self) -> list[WorkerInfo] | None:
        """The live workers; None on a store that keeps no list of them."""
        return await self._store.workers() if self._store.can(Capability.WORKERS) else None

    async def overview(self, *, limit: int = 200) -> Overview:
        """What a live view shows: nine reads, of at most `limit` jobs or groups of errors each."""
        return await read_overview(self._store, limit=limit)

    async def checkup(self) -> list[Finding]:
        """Check the fleet: clocks, versions, queues that nobody serves, unknown tasks, orphans.

        Reads at most 1000 running and 1000 collecting jobs.
        """
        return await check_fleet(self._store)

    async def store_checkup(self) -> list[Finding]:
        """Check the store's configuration and health: whether jobs are safe in it."""
        return await self._store.checkup()

    async def response_times(self, *, reads: int = 5) -> list[float]:
        """The seconds of each of some small reads of the store, one after another."""
        found, has_documents = [], self._store.can(Capability.DOCUMENTS)
        for _ in range(reads):
            began = time.perf_counter()
            await (self._store.document_versions([BULK_ACTS]) if has_documents else self._store.now())
            found.append(time.perf_counter() - began)
        return found

    async def audit(self, filter: AuditFilter = EVERY_ACT, *, before: int | None = None) -> AuditPage:
        """A page of the audit log, newest first, from the entry with the number `before` on."""
        return await AuditLog(self._store).page(filter, before=before)

    async def parked(self) -> list[ParkedView]:
        """Number of parked jobs by queue and task, with the workers that know the task, or the reason."""
        found = await self._store.parked()
        workers = await self._store.workers() if found else []
        return await parked_views(self._store, found, workers)

    async def pause(self, queue: str) -> QueueView:
        """Pause the queue: workers start no more of its jobs; new jobs are accepted."""
        return queue_view(await self._store.settings(check_queue(queue), paused=True))

    async def resume(self, queue: str) -> QueueView:
        """Resume a paused queue."""
        return queue_view(await self._store.settings(check_queue(queue), paused=False))

    async def close(self, queue: str) -> QueueView:
        """Close the queue: new jobs are refused; workers still run the jobs in it."""
        return queue_view(await self._store.settings(check_queue(queue), closed=True))

    async def open(self, queue: str) -> QueueView:
        """Open a closed queue."""
        return queue_view(await self._store.settings(check_queue(queue), closed=False))

    async def set_limits(self, queue: str, change: LimitChange) -> QueueView:
        """Change limits of the queue, throttle it, or end a throttle. In effect at once, for all workers."""
        return queue_view(await self._store.settings(queue, limits=change))

    async def reset_limits(self, queue: str, names: Sequence[str] = LIMIT_NAMES) -> QueueView:
        """Forget the operator's value of these limits: those of the app's code are in effect again."""
        return queue_view(await self._store.settings(queue, limits=limits_reset(names)))

    async def purge(self, queue: str, states: Sequence[State] = _WITHOUT_RUNNING) -> int:
        """Delete all jobs in these states (never running ones) in steps; returns how many."""
        gone = 0
        while True:
            n = await self._store.purge(queue, states, limit=_PURGED_AT_ONCE)
            gone += n
            if n < _PURGED_AT_ONCE:
                return gone

    async def delete_queue(self, queue: str) -> bool:
        """Delete an empty queue with its settings and statistics. False if it still has jobs."""
        return await self._store.drop(queue)

    # periodic entries

    async def entries(self, queue: str | None = None) -> list[EntryView]:
        """Periodic entries, by queue and name."""
        table = await self._store.entries(None if queue is None else [queue])
        return await entry_views(self._store, table.entries, table.now)

    async def entry(self, address: str) -> list[EntryView]:
        """The entry of a "queue/name"; for a bare name, the entries with that name in all queues."""
        table, found = await self._found(address)
        return await entry_views(self._store, found, table.now)

    async def upcoming(self, address: str, *, count: int = 10) -> list[int]:
        """The next instants of the entries at this address, in order, also of paused entries."""
        table, found = await self._found(address)
        readable = [one for one in found if one.unreadable is None]
        instants = [n for one in readable for n in islice(one.spec.schedule.instants(table.now), count)]
        return sorted(instants)[:count]

    async def runs(self, address: str, *, last: int = 12, next: int = 12) -> list[EntryRunsView]:
        """The entries at this address, each with its last and next runs; at most 50 of each."""
        table, found = await self._found(address)
        return await read_runs(self._store, found, table.now, last, next)

    async def entry_page(
        self,
        *,
        part: str = "",
        queues: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> EntryPageView:
        """A page of the entries with `part` in their names, each with a few of its last and next runs."""
        table = await self._store.entries(queues)
        every = [(f"{one.ref.queue}/{one.spec.name}", one) for one in table.entries]
        found = [(key, one) for key, one in every if part.lower() in key.lower()]
        found = sorted((pair for pair in found if after is None or pair[0] > after), key=lambda pair: pair[0])
        shown = [one for _, one in found[:limit]]
        runs = await read_runs(self._store, shown, table.now, last=5, next=6)
        return EntryPageView(runs, found[limit - 1][0] if len(found) > limit else None)

    async def put_entry(self, entry: NewEntry) -> EntryView:
        """Create or change an entry. Raises ConfigError for an entry that is registered by an app's code."""
        _, found = await self._found(f"{entry.ref.queue}/{entry.name}")
        if any(one.spec.by_code for one in found):
            raise ConfigError(
                f"the periodic entry {entry.name!r} of the queue {entry.ref.queue!r} is registered by code: "
                "change it there, or remove it here if that code is gone"
            )
        (stored,) = await self._store.put_entries([entry])
        return entry_view(stored, await self._store.now())

    async def pause_entry(self, address: str) -> list[EntryView]:
        """Pause entries: they enqueue no more jobs; jobs already enqueued stay."""
        return await self._pause(address, True)

    async def resume_entry(self, address: str) -> list[EntryView]:
        """Resume paused entries, from now on."""
        return await self._pause(address, False)

    async def remove_entry(self, address: str) -> list[EntryView]:
        """Delete entries; returns them as they were."""
        table, found = await self._found(address)
        gone = await self._store.delete_entries([entry.ref for entry in found])
        return [entry_view(entry, table.now) for entry, was in zip(found, gone, strict=True) if was]

    async def trigger_entry(self, address: str) -> list[Change]:
        """Enqueue one job of each entry at this address now; the schedule does not change.

        The overlap rule of an entry applies, except while it is paused. Raises ConfigError for an entry whose
        jobs cannot be read here.
        """
        return [await trigger(self._store, entry) for entry in (await self._found(address))[1]]

    # workers and figures

    async def workers(self, *, jobs: int = 20) -> list[WorkerView]:
        """All workers, each with up to `jobs` of the jobs that it holds. With 0: two reads in all."""
        infos, now = await self._store.workers(), await self._store.now()
        return await with_jobs(self._store, infos, jobs, now)

    async def worker(self, id: str, *, jobs: int = 200) -> WorkerView | None:
        """One worker, with up to `jobs` of the jobs that it holds; None if no live worker has this id."""
        infos = [one for one in await self._store.workers() if one.id == id]
        found = await with_jobs(self._store, infos, jobs, await self._store.now())
        return found[0] if found else None

    async def tell_workers(
        self, workers: Sequence[str], act: str, *, by: str, timeout: float = 10.0
    ) -> list[SentCommand]:
        """Tell workers, by id, to quiet, drain, stop, restart, or report their stacks (`WorkerAct`).

        Waits up to `timeout` seconds for their replies; a command without a reply is withdrawn. Raises
        ConfigError for an unknown act.
        """
        told, channel, supervisors = parse_act(act), CommandChannel(self._store), {}
        if told in SHARED_ACTS:
            known = await self._store.workers()
            supervisors = {w.id: f"{w.host} {w.supervisor}" for w in known if w.supervisor is not None}
        sent = await channel.send(workers, told, by=by, supervisors=supervisors)
        return await channel.replies(sent, timeout=timeout)

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        """Totals and daily counts per queue."""
        return await self._store.stats(days=days)

    # private

    async def _jobs_at(self, address: str) -> list[Job]:
        found = parse_address(address)
        jobs = await (self._store.get([found]) if isinstance(found, Ref) else self._store.find(found))
        return [job for job in jobs if job is not None]

    async def _found(self, address: str) -> tuple[Timetable, list[Entry]]:
        found = parse_address(address)
        table = await self._store.entries([found.queue] if isinstance(found, Ref) else None)
        name = found.id if isinstance(found, Ref) else found
        return table, [entry for entry in table.entries if entry.spec.name == name]

    async def _pause(self, address: str, paused: bool) -> list[EntryView]:
        table, found = await self._found(address)
        then = await self._store.pause_entries([entry.ref for entry in found], paused)
        return [entry_view(entry, table.now) for entry in then if entry is not None]

    async def _partition(self, job: Job) -> PartitionInfo | None:
        terms = job.spec.partition
        if terms is None:
            return None
        found = await self._store.partition(job.ref) if self._store.can(Capability.SEARCH) else None
        return found or PartitionInfo(terms.key, [], 0)
