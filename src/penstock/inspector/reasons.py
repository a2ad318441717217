"""Why a job does not run now: every rule of the store that keeps it, found by reading only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from penstock.core.duration import milliseconds
from penstock.core.errors import ConfigError, StoreUnavailable
from penstock.core.formats import instant
from penstock.core.job import QUEUED, TERMINAL, Job, Ref, State
from penstock.core.text import counted
from penstock.inspector.audit import AuditLog, ShownEntry
from penstock.inspector.step_views import open_gathers
from penstock.inspector.why_views import Reason, WhyView
from penstock.inspector.worker_reasons import knows, no_server, worker_reasons
from penstock.stores.contract import QueueInfo, Store, WorkerInfo

__all__ = ["holders", "stopped_by", "why"]

#: Jobs ahead of an available job are counted up to this number: a job may have a megabyte of arguments.
_MOST_COUNTED = 1_000
_PAGE = 200
#: How many of the jobs are named that hold a place, or that a flow waits for.
_NAMED = 3
_PAUSES = ("queue.pause", "queue.resume")
#: A worker holds these jobs, or has held them until their state began.
_FROM_A_WORKER = (State.RUNNING, State.PARKED, State.SUSPENDED)
#: A worker that has not reported itself for this long (ms) may be gone: it does every few seconds.
_LATE = 30_000


async def why(store: Store, job: Job) -> WhyView:
    """Read why this job does not run now."""
    return await _Question(store, job).answer()


async def holders(store: Store, info: QueueInfo) -> list[str]:
    """The first of the running jobs of a queue that has as many as its `max_running` allows; else none."""
    most = info.limits.max_running
    if most is None or info.counts.get(State.RUNNING, 0) < most:
        return []
    page = await store.list_jobs(queue=info.name, state=State.RUNNING, limit=_NAMED)
    return [job.id for job in page.jobs]


async def stopped_by(store: Store, info: QueueInfo) -> str | None:
    """Who has paused or throttled a queue, and when, by the audit log; None if code has, or nobody."""
    if not info.paused and info.throttled_until is None:
        return None
    async with aclosing(AuditLog(store).newest_first(act="queue.")) as entries:
        async for shown in entries:
            entry = shown.entry
            if info.name not in entry.to.split(", "):
                continue
            if entry.act in _PAUSES or (not info.paused and "throttle" in entry.facts):
                stops = entry.act == _PAUSES[0] if info.paused else _throttles(shown, info)
                return f"{entry.who} at {instant(shown.at)}" if stops else None
    return None


def _throttles(shown: ShownEntry, info: QueueInfo) -> bool:
    """Whether the queue is throttled by this act of an operator; else jobs have asked for more time."""
    try:
        lasts = milliseconds(shown.entry.facts["throttle"])
    except ConfigError:  # the act has ended a throttle
        return False
    return shown.at + lasts >= (info.throttled_until or 0)


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
        reasons = ended or await asked[job.state]()
        return WhyView(job.queue, job.id, job.state.value, instant(_since(job)), reasons)

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
        return found or [self._next(workers)]

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
        knowing = [w.id for w in serving if knows(w, job)]
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
                found.append(Reason("signal", f"its flow waits for the signal {name!r}{with_key}"))
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
        workers = await self._store.workers()
        holder = next((w for w in workers if w.id == job.worker), None)
        if holder is None:
            lost = "its worker is not in the list of workers: another one takes it when the lease has run out"
            found.append(Reason("lost worker", lost))
            if not any(job.queue in w.queues for w in workers):
                found.append(no_server(job))
        elif await self._now() - holder.seen_at > _LATE:
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

    async def _now(self) -> int:
        return (await self._store.entries([])).now

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
        if info.opens is not None:
            opens = instant(info.opens)
            return [Reason("rated", f"the rate of the queue ({info.limits.rate}) opens at {opens}")]
        return []

    async def _serving(self) -> list[WorkerInfo]:
        """The live workers that serve the job's queue."""
        return [w for w in await self._store.workers() if self._job.queue in w.queues]

    async def _ahead(self) -> list[Reason]:
        """How many jobs of the queue are fetched before this one."""
        ahead, after = 0, None
        while ahead < _MOST_COUNTED:
            page = await self._store.list_next(self._job.queue, after=after, limit=_PAGE)
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
