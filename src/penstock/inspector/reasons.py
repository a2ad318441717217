"""Why a job does not run now: every rule of the store that keeps it, found by reading only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from penstock.core.errors import ConfigError, StoreUnavailable, Unsupported
from penstock.core.formats import instant, milliseconds, shown_text
from penstock.core.job import QUEUED, TERMINAL, Job, Ref, State
from penstock.core.step_names import parsed
from penstock.core.text import counted
from penstock.inspector.audit import AuditFilter, AuditLog, ShownEntry
from penstock.inspector.queue_views import StoppedBy
from penstock.inspector.step_views import open_gathers
from penstock.inspector.worker_views import MAY_BE_GONE, knows
from penstock.stores.contract import Capability, JobFilter, JobOrder, QueueInfo, Store, WorkerInfo

# ── reasons about workers ────────────────────────────────────────────────────────────────────────


class Reason(msgspec.Struct, frozen=True):
    """One rule that keeps a job. `kind` is stable: paused, throttled, limited, rated, delayed, ahead …"""

    kind: str
    says: str


class WhyView(msgspec.Struct, frozen=True):
    """Why a job does not run now: its state, since when, and the reasons, the decisive one first.

    An ended job has one reason, which says so. A running job has the worker that runs it, and more if that
    worker is silent or gone.
    """

    queue: str
    id: str
    state: str
    since: int
    reasons: list[Reason]


_STALLED = (
    "the jobs in these slots wait for results of jobs of this queue: enqueue the children as a flow, or "
    "gather them in a durable task, so that no slot waits; or give them a queue and a worker of their own"
)


def no_server(job: Job) -> Reason:
    """That nobody serves the queue."""
    return Reason("no worker", f"no live worker serves the queue {job.queue!r}")


def worker_reasons(job: Job, serving: Sequence[WorkerInfo]) -> list[Reason]:
    """Why none of the live workers of the queue takes the job now; none if one does."""
    if not serving:
        return [no_server(job)]
    fetching = [worker for worker in serving if worker.state == "running"]
    if not fetching:
        states = ", ".join(sorted({worker.state for worker in serving}))
        return [Reason("no worker", f"no worker of the queue fetches jobs now ({states})")]
    if not any(knows(worker, job.queue, job.task) for worker in fetching):
        return [Reason("unknown task", f"no live worker knows the task {job.task!r}: it will be parked")]
    taken = [_taken(worker, job) for worker in fetching]
    if not all(taken):
        return []
    busy = Reason("busy", _busy(fetching, set(taken)))
    stalled = any(job.queue in worker.stalled_queues for worker in fetching)
    return [busy, Reason("stalled", _STALLED)] if stalled else [busy]


def _taken(worker: WorkerInfo, job: Job) -> str:
    """Which slots of the worker the job would need, if they are all taken; else ""."""
    if worker.running >= worker.concurrency:
        return "slots"
    if job.queue in worker.full_queues:
        return "slots of the queue"
    if job.queue in worker.stalled_queues:
        return "slots for it"
    return "process slots" if job.task in worker.full_tasks else ""


def _busy(workers: Sequence[WorkerInfo], taken: set[str]) -> str:
    who = "the only worker" if len(workers) == 1 else f"the {len(workers)} workers"
    if taken == {"slots"}:
        slots = sum(worker.concurrency for worker in workers)
        if slots == 1:
            return f"the only slot of {who} of the queue is taken"
        return f"all {slots} slots of {who} of the queue are taken"
    if taken == {"slots of the queue"}:
        return f"all slots that {who} of the queue may use for it are taken"
    if taken == {"process slots"}:
        return f"all process slots of {who} of the queue are taken"
    return f"none of {who} of the queue has a free slot for it"


# ── the reasons of one job ───────────────────────────────────────────────────────────────────────

#: Jobs ahead of an available job are counted up to this number: a job may have a megabyte of arguments.
_MOST_COUNTED = 1_000
_PAGE = 200
#: How many of the jobs are named that hold a place, or that a flow waits for.
_NAMED = 3
_PAUSES = ("queue.pause", "queue.resume")
#: A worker holds these jobs, or has held them until their state began.
_FROM_A_WORKER = (State.RUNNING, State.PARKED, State.SUSPENDED)
#: What keeps the queue keeps these, too, beside what they wait for.
_STOPPED_WITH_QUEUE = (State.WAITING, State.COLLECTING, State.SUSPENDED, State.PARKED)


async def why(store: Store, job: Job) -> WhyView:
    """Read why this job does not run now."""
    return await _Question(store, job).answer()


async def holders(store: Store, info: QueueInfo) -> list[str]:
    """The first of the running jobs of a queue that has as many as its `max_running` allows; else none."""
    most = info.limits.max_running
    if most is None or info.counts.get(State.RUNNING, 0) < most or not store.can(Capability.SEARCH):
        return []
    page = await store.list_jobs(queue=info.name, state=State.RUNNING, limit=_NAMED)
    return [job.id for job in page.jobs]


async def stopped_by(store: Store, info: QueueInfo) -> StoppedBy | None:
    """Who has paused or throttled a queue, and when, by the audit log; None if code has, or nobody."""
    if (not info.paused and info.throttled_until is None) or not store.can(Capability.DOCUMENTS):
        return None
    async with aclosing(AuditLog(store).newest_first(AuditFilter(act="queue."))) as entries:
        async for shown in entries:
            entry = shown.entry
            if info.name not in entry.to.split(", "):
                continue
            if entry.act in _PAUSES or (not info.paused and "throttle" in entry.facts):
                stops = entry.act == _PAUSES[0] if info.paused else _throttles(shown, info)
                return StoppedBy(entry.who, shown.at) if stops else None
    return None


def _throttles(shown: ShownEntry, info: QueueInfo) -> bool:
    """Whether the queue is throttled by this act of an operator; else jobs have asked for more time."""
    try:
        lasts = milliseconds(shown.entry.facts["throttle"])
    except ConfigError:  # the act has ended a throttle
        return False
    return shown.at + lasts >= (info.throttled_until or 0)


#: What the reasons depend on, beside the queue and the job.
_ASKED_OF_STORES = (Capability.WORKERS, Capability.SEARCH, Capability.STEPS, Capability.FLOW)
_ASKED = "it was asked to stop: the worker that takes it ends it, after undoing its steps if it has any"


class _Question:
    """The reads for one answer."""

    def __init__(self, store: Store, job: Job) -> None:
        self._store = store
        self._job = job

    async def answer(self) -> WhyView:
        job = self._job
        asked = {
            State.AVAILABLE: self._available,
            State.SCHEDULED: self._later,
            State.RETRYABLE: self._later,
            State.PARKED: self._parked,
            State.WAITING: self._waiting,
            State.COLLECTING: self._collecting,
            State.SUSPENDED: self._suspended,
            State.RUNNING: self._running,
        }
        ended = [_ended(job)] if job.state in TERMINAL else await self._expired()
        reasons = ended or await self._known(asked[job.state])
        if not ended:
            reasons = [*await self._deadline(), *reasons]
            if job.state in _STOPPED_WITH_QUEUE:
                reasons += await self._stopped()
            if job.cancel_asked and job.state is not State.RUNNING:
                reasons.append(Reason("cancelled", _ASKED))
        return WhyView(job.queue, job.id, job.state.value, _since(job), reasons)

    async def _known(self, ask: Callable[[], Awaitable[list[Reason]]]) -> list[Reason]:
        """The reasons of a state; of a store that does not keep what they depend on, those of the queue."""
        try:
            return await ask()
        except Unsupported:
            lacks = next(one for one in _ASKED_OF_STORES if not self._store.can(one))
            of_queue = [] if self._job.state in _STOPPED_WITH_QUEUE else await self._stopped()
            return [*of_queue, Reason("unknown", f"no more is known: this store cannot {lacks.value}")]

    # ── states ───────────────────────────────────────────────────────────────────────────────────

    async def _available(self) -> list[Reason]:
        infos = await self._store.queues([self._job.queue])
        if not infos:
            return [Reason("gone", "its queue has just been deleted")]
        (info,) = infos
        if info.away:
            return [Reason("away", f"this part of the store does not answer: {info.away}")]
        workers = await self._serving()
        found = [
            *await self._paused(info),
            *await self._limited(info),
            *worker_reasons(self._job, workers),
            *await self._ahead(),
        ]
        if found:
            return found
        return await self._leased_by_all(workers) or [self._next(workers)]

    async def _leased_by_all(self, workers: Sequence[WorkerInfo]) -> list[Reason]:
        """Whether each worker holds as many jobs as it has slots: it reports that only from time to time."""
        held: list[WorkerInfo] = []
        for worker in workers:
            if worker.concurrency > _PAGE:
                return []
            page = await self._store.list_jobs(
                state=State.RUNNING, worker=worker.id, limit=worker.concurrency
            )
            held.append(msgspec.structs.replace(worker, running=len(page.jobs)))
        return worker_reasons(self._job, held)

    async def _stopped(self) -> list[Reason]:
        """What keeps the queue of a job that waits for something else, too: it would not start after that."""
        found: list[Reason] = []
        for info in await self._store.queues([self._job.queue]):
            found += await self._paused(info)
            if info.throttled_until is not None:
                found += await self._limited(info)
        return found

    async def _later(self) -> list[Reason]:
        job = self._job
        found = [Reason("delayed", self._due(await self._now()))]
        for info in await self._store.queues([job.queue]):
            found += await self._paused(info)
            if info.throttled_until is not None and info.throttled_until > job.run_at:
                found += await self._limited(info)
        return found if await self._serving() else [*found, no_server(job)]

    def _due(self, now: int) -> str:
        job, at = self._job, instant(self._job.run_at)
        what, failed = "it", ""
        if job.state is State.RETRYABLE and job.errors:
            last = job.errors[-1]
            what, failed = "the next one", f"attempt {last.attempt} failed ({last.kind}); "
        if job.run_at <= now:
            return f"{failed}it was due at {at}: a worker makes it available next"
        return f"{failed}{what} is due at {at}"

    async def _parked(self) -> list[Reason]:
        job, serving = self._job, await self._serving()
        if job.reason:
            return [Reason("parked", job.reason)]
        knowing = [w.id for w in serving if knows(w, job.queue, job.task)]
        if knowing:
            return [Reason("next", f"worker {knowing[0]} knows the task {job.task!r} and takes it next")]
        return [Reason("unknown task", f"no live worker knows the task {job.task!r}")]

    async def _waiting(self) -> list[Reason]:
        info = await self._store.partition(self._job.ref)
        if info is None:
            return [Reason("next", "its partition is free: it is admitted next")]
        named = ", ".join(f"{one.id} ({one.state.value})" for one in info.admitted[:_NAMED])
        more = len(info.admitted) - _NAMED
        also = f" and {more} more" if more > 0 else ""
        found = [Reason("partition", f"its partition {info.key!r} is held by {named}{also}")] if named else []
        if info.due is not None:
            found.append(Reason("rated", f"the rate of its partition opens at {instant(info.due)}"))
        if info.before:
            found.append(Reason("ahead", f"{_jobs(info.before)} ahead of it in its partition"))
        return found or [Reason("next", f"its partition {info.key!r} admits it next")]

    async def _collecting(self) -> list[Reason]:
        job = self._job
        if job.batch is not None:
            (batch,) = await self._store.get([Ref(job.queue, job.batch)])
            state = "gone" if batch is None else batch.state.value
            return [Reason("batch", f"it is part of the batch {job.batch}, which is {state}")]
        terms = job.spec.batch_terms
        key = "" if terms is None else terms.key
        infos = await self._store.batches(job.queue, limit=_MOST_COUNTED)
        for info in infos:
            if (info.task, info.key) == (job.task, key):
                due = "is full" if info.due is None else f"is full, or at {instant(info.due)}"
                return [Reason("batch", f"its batch starts when it {due}; its size is {info.size:,}")]
        if len(infos) == _MOST_COUNTED:
            says = f"its batch is collecting, and {_MOST_COUNTED:,} others of the queue are due before it"
            return [Reason("batch", says)]
        return [Reason("batch", "its batch starts next")]

    async def _suspended(self) -> list[Reason]:
        found = []
        for step in await self._store.steps(self._job.ref, largest=0):
            if step.value is None and step.signal is not None:
                name, key = step.signal
                with_key = f" with the key {key!r}" if key else ""
                place = parsed(step.name)
                within = f" in {'/'.join(place.scope)}" if place is not None and place.scope else ""
                says = f"its flow waits for the signal {name!r}{with_key}{within}"
                found.append(Reason("signal", shown_text(says)))
        found += [await self._gather(refs) for refs in await open_gathers(self._store, self._job)]
        at = instant(self._job.run_at)
        says = f"its flow checks again at {at}" if found else f"its flow continues at {at}"
        return [*found, Reason("timer", says)]

    async def _gather(self, refs: Sequence[Ref]) -> Reason:
        """Names only jobs of its own queue: others may be hidden from the one who asks."""
        if not refs:
            return Reason("gather", "its flow waits for a gather whose jobs cannot be read here")
        try:
            jobs = await self._store.get(refs[:_PAGE])
        except StoreUnavailable:
            jobs = []  # part of the store is away: the other reasons are still true
        open_ = [job for job in jobs if job is not None and not job.ended]
        own = [f"{job.id} ({job.state.value})" for job in open_ if job.queue == self._job.queue][:_NAMED]
        more = " and others" if len(open_) > len(own) or len(refs) > _PAGE else ""
        named = f": {', '.join(own)}{more}" if own else ""
        return Reason("gather", f"its flow waits for a gather of {counted(len(refs), 'job')}{named}")

    async def _running(self) -> list[Reason]:
        job = self._job
        says = f"worker {job.worker} runs it (attempt {job.attempt})"
        if not job.started:
            says = f"worker {job.worker} has leased it, and is not known to have started it"
        found = [Reason("running", says)]
        if not self._store.can(Capability.WORKERS):
            return found
        workers = await self._store.workers()
        holder = next((w for w in workers if w.id == job.worker), None)
        if holder is None:
            lost = "its worker is not in the list of workers: another one takes it when the lease has run out"
            found.append(Reason("lost worker", lost))
            if not any(job.queue in w.queues for w in workers):
                found.append(no_server(job))
        elif await self._now() - holder.seen_at > MAY_BE_GONE * 1000:
            seen = f"its worker was last seen at {instant(holder.seen_at)}"
            found.append(Reason("lost worker", f"{seen}: if it is gone, another one takes the job"))
        if job.cancel_asked:
            found.append(Reason("cancelled", "it was asked to stop"))
        return found

    async def _expired(self) -> list[Reason]:
        job = self._job
        if job.state not in QUEUED or job.expires_at is None:
            return []
        if job.expires_at > await self._now():
            return []
        return [Reason("expired", f"it expired at {instant(job.expires_at)}: it is cancelled next")]

    async def _deadline(self) -> list[Reason]:
        """That the job will not start, because its deadline comes before it can."""
        deadline, run_at = self._job.spec.deadline, self._job.run_at
        if deadline is None or self._job.state not in QUEUED:
            return []
        if deadline <= await self._now():
            says = f"its deadline passed at {instant(deadline)}"
        elif deadline <= run_at and self._job.state in (State.SCHEDULED, State.RETRYABLE):
            says = f"its deadline, {instant(deadline)}, passes before it is due"
        else:
            return []
        return [Reason("deadline", f"{says}: the worker that takes it makes it dead")]

    async def _now(self) -> int:
        return await self._store.now()

    # ── rules of the queue ───────────────────────────────────────────────────────────────────────

    async def _paused(self, info: QueueInfo) -> list[Reason]:
        if not info.paused:
            return []
        by = await stopped_by(self._store, info)
        return [Reason("paused", f"the queue was paused by {by}" if by else "the queue is paused")]

    async def _limited(self, info: QueueInfo) -> list[Reason]:
        if info.throttled_until is not None:
            by = None if info.paused else await stopped_by(self._store, info)
            says = f"the queue is throttled until {instant(info.throttled_until)}"
            return [Reason("throttled", f"{says}, by {by}" if by else says)]
        most, running = info.limits.max_running, info.counts.get(State.RUNNING, 0)
        if most is not None and running >= most:
            named = await holders(self._store, info)
            others = " and others" if running > len(named) else ""
            held = f", held by {', '.join(named)}{others}" if named else ""
            run = "runs" if most == 1 else "run"
            of = f"{running} of {counted(most, 'job')} of the queue"
            return [Reason("limited", f"{of} {run} (max_running){held}")]
        if info.opens_at is not None:
            opens = instant(info.opens_at)
            return [Reason("rated", f"the rate of the queue ({info.limits.rate}) opens at {opens}")]
        return []

    async def _serving(self) -> list[WorkerInfo]:
        """The live workers that serve the job's queue."""
        return [w for w in await self._store.workers() if self._job.queue in w.queues]

    async def _ahead(self) -> list[Reason]:
        """How many jobs of the queue are fetched before this one."""
        ahead, after = 0, None
        while ahead < _MOST_COUNTED:
            page = await self._store.search(
                JobFilter((self._job.queue,)), JobOrder.READY, descending=False, after=after, limit=_PAGE
            )
            ids = [job.id for job in page.jobs]
            if self._job.id in ids:
                ahead += ids.index(self._job.id)
                return [Reason("ahead", f"{_jobs(ahead)} ahead of it")] if ahead else []
            ahead, after = ahead + len(ids), page.next
            if after is None:
                return []  # it has just been fetched
        return [Reason("ahead", f"more than {_MOST_COUNTED:,} jobs are ahead of it")]

    def _next(self, workers: Sequence[WorkerInfo]) -> Reason:
        who = f"worker {workers[0].id}" if len(workers) == 1 else f"one of {len(workers)} workers"
        return Reason("next", f"it is the next of its queue: {who} takes it")


def _jobs(n: int) -> str:
    return f"{counted(n, 'job')} {'is' if n == 1 else 'are'}"


def _ended(job: Job) -> Reason:
    if job.state is State.COMPLETED:
        return Reason("ended", "it has completed")
    why = job.reason
    if not why and job.errors:
        why = f"{job.errors[-1].kind}: {job.errors[-1].message}".partition("\n")[0]
    return Reason("ended", f"it is {job.state.value}{f': {why}' if why else ''}")


def _since(job: Job) -> int:
    """The instant at which the job's state began, as far as the store keeps it."""
    if job.state in TERMINAL and job.ended_at is not None:
        return job.ended_at
    if job.state is State.RETRYABLE and job.errors:
        return job.errors[-1].at
    if job.state in _FROM_A_WORKER and job.fetched_at is not None:
        return job.fetched_at
    return job.run_at if job.state is State.AVAILABLE else job.enqueued_at
