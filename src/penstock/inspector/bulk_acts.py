"""Acts on all jobs that match a filter, as objects in the store.

A bulk act survives the process that started it: any worker continues it. Its record is a document of the kind
`bulk-acts`, and each step compares the record's revision, so that one process at a time works on it.
"""

from __future__ import annotations

import enum
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigError, StoreUnavailable
from penstock.core.ids import check_queue, mint
from penstock.inspector.audit import AuditLog, redacted
from penstock.inspector.job_acts import START_AGAIN, Change, JobAct, JobActs, result_of, would_start_again
from penstock.inspector.job_filters import before, filter_of_act, is_everything, select_same_jobs
from penstock.inspector.job_search import jobs_to_pass
from penstock.inspector.reach import apply_within
from penstock.stores.contract import (
    Document,
    DocumentChange,
    DocumentStatus,
    JobFilter,
    SearchPage,
    Store,
)
from penstock.stores.worker_commands import BULK_ACTS, read_document

#: The most jobs that one step changes, so that no script of Redis takes 5 ms.
_STEP = 100
#: How many jobs a bulk act changes in a second unless its caller says. At this pace it takes about 3 % of the
#: time of a Redis server, of the lock of an SQLite file, or of a worker process (benchmarks/beside_bulk.py).
PACE = 500
#: The highest pace.
MOST_PACE = 100_000
#: How long (ms) a process holds a bulk act after each of its steps.
_HELD = 15_000
#: How long (ms) an ended bulk act is kept, and how many of them.
_KEPT, _MOST_KEPT = 7 * 86_400_000, 1_000
#: The most bytes of a bulk act at its start: the examples of skipped jobs and encryption need room, too.
_LARGEST = 32_768
_PAGE = 200
#: How many reasons for which jobs were skipped are counted, and how many of these jobs are named.
_REASONS, _NAMED = 12, 10
#: Where further reasons are counted.
_OTHER = "other reasons"


class BulkState(enum.StrEnum):
    """The state of a bulk act. Only RUNNING continues."""

    RUNNING = "running"
    DONE = "done"
    ABORTED = "aborted"
    FAILED = "failed"

    __hash__ = str.__hash__


class BulkAct(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk act and its progress.

    - `filter`: the jobs, of which those count that were enqueued before `created_at`.
    - `delay` (ms), `to`, `reason`, `result` (JSON): arguments of RESCHEDULE, MOVE, DISCARD and COMPLETE.
      `spare_at_most_once`: RETRY and DUPLICATE refuse at-most-once jobs that have started.
    - `by`: who started it. `limit`: the most jobs. `pace`: the most jobs per second.
    - `total`: about how many jobs the search looks at; `seen`: how many it has looked at.
    - `done`, `asked`, `refused`, `missing`: the jobs by outcome (see `Change`). If the process of a step
      died, its jobs may be missing here.
    - `skipped`: how many jobs were refused or missing, by reason; `examples`: the first of these jobs.
    - `within`: the queues whose jobs may change; None: all. See `Inspector.act`.
    - `reserved`: with a limit, how many jobs its steps were to change, also those whose process died.
    - `again`: how many of the done jobs are at-most-once and start again.
    - `error`: why it failed.
    """

    id: str
    act: JobAct
    filter: JobFilter
    delay: int = 0
    to: str = ""
    reason: str = ""
    result: str = ""
    spare_at_most_once: bool = False
    by: str = ""
    limit: int | None = None
    pace: int = PACE
    created_at: int = 0
    ended_at: int | None = None
    state: BulkState = BulkState.RUNNING
    total: int = 0
    seen: int = 0
    done: int = 0
    asked: int = 0
    refused: int = 0
    missing: int = 0
    skipped: dict[str, int] = {}
    examples: tuple[Change, ...] = ()
    reserved: int = 0
    again: int = 0
    error: str = ""
    after: str | None = None
    holder: str = ""
    lease_until: int = 0
    within: tuple[str, ...] | None = None

    @property
    def changed(self) -> int:
        """The number of jobs that the act has been tried on."""
        return self.done + self.asked + self.refused + self.missing

    def is_held(self, now: int) -> bool:
        """Whether a process works on it. A lease that is too long is from before the clock was set back."""
        return now < self.lease_until <= now + _HELD


class BulkActs:
    """Starts, lists, aborts and runs the bulk acts of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._audit = AuditLog(store)

    # ── the operator ─────────────────────────────────────────────────────────────────────────────

    async def dry_run(
        self, filter: JobFilter, *, act: JobAct | None = None, limit: int | None = None
    ) -> AsyncGenerator[int, None]:
        """Count the jobs that match, changing nothing: the number so far, after each step of the search.

        `act`: count the jobs that `start` selects for this act. Raises StoreUnavailable if some of their
        queues are away.
        """
        async with aclosing(self.selected(filter, act=act, limit=limit)) as counts:
            async for found, _ in counts:
                yield found

    async def selected(
        self, filter: JobFilter, *, act: JobAct | None = None, limit: int | None = None
    ) -> AsyncGenerator[tuple[int, int], None]:
        """Like `dry_run`, with the number of those that are at-most-once and have started: a retry or a
        duplicate starts them again."""
        filter = filter if act is None else filter_of_act(act, filter)
        found, again, after = 0, 0, None
        while limit is None or found < limit:
            page = _all_there(await self._store.search(filter, after=after, limit=500))
            jobs = page.jobs if limit is None else page.jobs[: limit - found]
            found, again = found + len(jobs), again + sum(map(would_start_again, jobs))
            after = page.next
            yield found, again
            if after is None:
                return

    async def start(
        self,
        act: JobAct,
        filter: JobFilter,
        *,
        by: str,
        delay: int = 0,
        to: str = "",
        reason: str = "",
        result: str = "",
        limit: int | None = None,
        pace: int = PACE,
        spare_at_most_once: bool = False,
        within: Sequence[str] | None = None,
    ) -> BulkAct:
        """Start an act on all jobs that match; workers run it, and so may the caller (`PacedSteps`).

        A filter without states selects those for which the act is meant: dead jobs for RETRY, scheduled and
        retryable ones for RUN_NOW, queued ones for RESCHEDULE.

        `limit`: the most jobs. `pace`: the most jobs per second. `within`: as in `Inspector.act`.
        `spare_at_most_once`: a retry or a duplicate leaves out at-most-once jobs that have started.

        Raises ConfigError for a filter that matches every job or is too long, for a pace out of range, for a
        result that is not JSON, and while another act on the same jobs runs.
        """
        if not 1 <= pace <= MOST_PACE:
            raise ConfigError(f"the pace {pace} is out of range: give 1 to {MOST_PACE:,} jobs per second")
        if act is JobAct.MOVE:
            check_queue(to)
        result_of(result)
        if is_everything(act, filter):
            raise ConfigError("the filter matches every job: name a queue, a state, a task, a text or a time")
        filter = filter_of_act(act, filter)
        listed, now = await self._all()
        acts = [one for _, one in listed]
        self._refuse_second(filter, acts)
        bulk = BulkAct(
            id=mint(),
            act=act,
            filter=filter,
            delay=delay,
            to=to,
            reason=reason,
            result=result,
            spare_at_most_once=spare_at_most_once,
            by=by,
            limit=limit,
            pace=pace,
            created_at=now,
            within=None if within is None else tuple(within),
            total=await jobs_to_pass(self._store, filter),
        )
        await self._write_new(bulk, acts)
        await self._refuse_racing(bulk)
        await self._audit.write(by, f"bulk.{act.value}", bulk.id, facts=_facts(bulk))
        return bulk

    async def all(self) -> list[BulkAct]:
        """The bulk acts that run, and those that ended in the last 7 days; the newest first."""
        listed, _ = await self._all()
        return [one for _, one in listed][::-1]

    async def get(self, id: str) -> BulkAct | None:
        """The bulk act with this id; None if there is none."""
        found, _ = await self._one(id)
        return None if found is None else found[1]

    async def abort(self, id: str, *, by: str) -> BulkAct | None:
        """Stop a bulk act after the step in progress; changed jobs stay changed. None: no such act.

        The answer does not count the jobs of that step; the stored act does when the step has ended.
        """
        while True:
            found, now = await self._one(id)
            if found is None:
                return None
            revision, bulk = found
            if bulk.state is not BulkState.RUNNING:
                return bulk
            ended = replace(bulk, state=BulkState.ABORTED, ended_at=now)
            if await self._write(ended, revision):
                await self._audit.write(by, "bulk.abort", id)
                return ended

    # ── who runs it ──────────────────────────────────────────────────────────────────────────────

    async def next_free(self) -> tuple[BulkAct | None, int | None]:
        """A running bulk act that nobody holds; else in how many ms one may be free, None if none runs."""
        listed, now = await self._all()
        running = [one for _, one in listed if one.state is BulkState.RUNNING]
        free = [one for one in running if not one.is_held(now)]
        if free:
            return free[0], 0
        return None, min((one.lease_until - now for one in running), default=None)

    async def step(self, id: str, holder: str) -> BulkAct | None:
        """Do the next step of a bulk act for `holder`; None if it has ended, or another process holds it.

        Raises StoreUnavailable while some of its queues are away: no job of theirs is passed over.
        """
        found, now = await self._one(id)
        if found is None or found[1].state is not BulkState.RUNNING:
            return None
        revision, bulk = found
        if bulk.holder != holder:
            if bulk.is_held(now):
                return None
            bulk = replace(bulk, holder=holder, lease_until=now + _HELD)
            if not await self._write(bulk, revision):
                return None
            return bulk  # held from here on: the next step changes jobs
        try:
            page = await self._next_jobs(bulk)
            if bulk.limit is not None and page is not None and page.hits:
                # before they are changed: the step may be repeated after a crash, and then with other jobs
                bulk = replace(bulk, reserved=bulk.reserved + len(page.hits))
                revision = await self._write(bulk, revision)
                if not revision:
                    return None
            after = replace(bulk, state=BulkState.DONE) if page is None else await self._changed(bulk, page)
            after = replace(after, lease_until=now + _HELD)
        except ConfigError as error:
            after = replace(bulk, state=BulkState.FAILED, error=str(error))
        if after.state is not BulkState.RUNNING:
            after = replace(after, ended_at=now)
        if not await self._write(after, revision):
            await self._count_last_step(bulk, after)
            return None
        if after.state is not BulkState.RUNNING:
            await self._audit.write(after.by, "bulk.end", after.id, facts=_facts(after))
        return after

    async def _next_jobs(self, bulk: BulkAct) -> SearchPage | None:
        """The jobs of the next step; None if the limit is reached."""
        room = _STEP if bulk.limit is None else min(_STEP, bulk.limit - bulk.reserved)
        if room <= 0:
            return None
        # a copy may be enqueued within the millisecond of the start, and must not be copied again; nor may a
        # moved job be met again in its new queue
        end = bulk.created_at + (bulk.act not in (JobAct.DUPLICATE, JobAct.MOVE))
        filter = replace(bulk.filter, enqueued=before(bulk.filter.enqueued, end))
        search = self._store.search(filter, descending=False, after=bulk.after, limit=room)
        return _all_there(await search)

    async def _changed(self, bulk: BulkAct, page: SearchPage) -> BulkAct:
        """Change these jobs; return the bulk act with its new progress."""
        acts = JobActs(
            self._store,
            delay=bulk.delay,
            to=bulk.to,
            reason=bulk.reason,
            result=bulk.result,
            once=bulk.id,
            spare_at_most_once=bulk.spare_at_most_once,
        )
        # if the clock was set back, copies that the act has made are older than its start
        jobs = [job for job in page.jobs if not acts.has_made(job.id)]
        alone = [job for job in jobs if not job.in_batch]  # members of a batch end with it
        changes = [
            Change(job.queue, job.id, "refused", "part of a batch: change the batch instead")
            for job in jobs
            if job.in_batch
        ]
        refs = [job.ref for job in alone]
        changed = await apply_within(self._store, acts, bulk.act, refs, bulk.within, alone)
        if bulk.act in START_AGAIN:
            pairs = zip(alone, changed, strict=True)
            again = sum(would_start_again(job) and one.outcome == "done" for job, one in pairs)
            bulk = replace(bulk, again=bulk.again + again)
        changes += changed
        state = BulkState.DONE if page.next is None else BulkState.RUNNING
        return replace(_counted(bulk, changes), after=page.next, seen=bulk.seen + page.seen, state=state)

    async def _count_last_step(self, before: BulkAct, after: BulkAct) -> None:
        """Store what a step has changed during which the act was aborted."""
        found, _ = await self._one(before.id)
        if found is None or found[1].state is not BulkState.ABORTED:
            return
        revision, aborted = found
        if replace(aborted, state=before.state, ended_at=None) == before:
            await self._write(replace(after, state=aborted.state, ended_at=aborted.ended_at), revision)

    # ── records ──────────────────────────────────────────────────────────────────────────────────

    async def _all(self) -> tuple[list[tuple[int, BulkAct]], int]:
        """All bulk acts with their revisions, the oldest first, and the store's clock."""
        found: list[tuple[int, BulkAct]] = []
        after: str | None = None
        while True:
            page = await self._store.documents(BULK_ACTS, after=after, limit=_PAGE)
            found += [(one.revision, bulk) for one in page.documents if (bulk := _read(one)) is not None]
            after = page.next
            if after is None:
                return found, page.now

    async def _one(self, id: str) -> tuple[tuple[int, BulkAct] | None, int]:
        """The bulk act with this id and its revision, and the store's clock. Reads no others."""
        document, now = await read_document(self._store, BULK_ACTS, id)
        bulk = None if document is None else _read(document)
        return (None if document is None or bulk is None else (document.revision, bulk)), now

    async def _write(self, bulk: BulkAct, revision: int) -> int:
        """Store the bulk act if its record still has this revision; returns the new one, or 0."""
        expires = None if bulk.state is BulkState.RUNNING else _KEPT
        change = DocumentChange(bulk.id, msgspec.json.encode(bulk), revision, expires)
        (written,) = await self._store.change_documents(BULK_ACTS, [change])
        return written.revision if written.status is DocumentStatus.APPLIED else 0

    async def _write_new(self, bulk: BulkAct, others: list[BulkAct]) -> None:
        """Store a bulk act, and remove the oldest ended ones if there are too many."""
        body = msgspec.json.encode(bulk)
        if len(body) > _LARGEST:
            raise ConfigError(
                f"the filter, the reason and the result have {len(body):,} bytes; a bulk act has at most "
                f"{_LARGEST:,}: name fewer queues, or shorten the text"
            )
        ended = sorted((one.ended_at, one.id) for one in others if one.ended_at is not None)
        surplus = max(0, len(ended) + 1 - _MOST_KEPT)
        changes = [DocumentChange(id, None) for _, id in ended[: min(surplus, _PAGE)]]
        changes.append(DocumentChange(bulk.id, body, 0))
        *_, written = await self._store.change_documents(BULK_ACTS, changes, notify=True)
        if written.status is not DocumentStatus.APPLIED:
            raise ConfigError("too many bulk acts are running: wait for the end of some, or abort them")

    async def _refuse_racing(self, bulk: BulkAct) -> None:
        """Remove this bulk act and raise, if another one with its filter was started at the same time."""
        others = [one for _, one in (await self._all())[0] if one.id != bulk.id]
        try:
            self._refuse_second(bulk.filter, others)
        except ConfigError:
            await self._store.change_documents(BULK_ACTS, [DocumentChange(bulk.id, None)])
            raise

    def _refuse_second(self, filter: JobFilter, others: list[BulkAct]) -> None:
        for one in others:
            if one.state is BulkState.RUNNING and select_same_jobs(one.filter, filter):
                raise ConfigError(
                    f"the bulk act {one.id} ({one.act.value} by {one.by}) runs on the same jobs: "
                    "wait for its end, or abort it"
                )


def _counted(bulk: BulkAct, changes: list[Change]) -> BulkAct:
    """The bulk act with the outcomes of these jobs."""
    counts = {"done": bulk.done, "asked": bulk.asked, "refused": bulk.refused, "missing": bulk.missing}
    skipped, examples = dict(bulk.skipped), list(bulk.examples)
    for change in changes:
        counts[change.outcome] += 1
        if change.outcome in ("refused", "missing"):
            reason = change.says if change.says in skipped or len(skipped) < _REASONS else _OTHER
            skipped[reason] = skipped.get(reason, 0) + 1
            examples += [change] if len(examples) < _NAMED else []
    return replace(bulk, skipped=skipped, examples=tuple(examples), **counts)


def _all_there(page: SearchPage) -> SearchPage:
    """The page, if no queue is missing from it: a search that continues would pass their jobs over."""
    if page.away:
        names = ", ".join(page.away[:5])
        raise StoreUnavailable(f"part of the store is away: {names}; name other queues to go on without it")
    return page


def _facts(bulk: BulkAct) -> dict[str, str]:
    facts = {
        "act": bulk.act.value,
        "filter": msgspec.json.encode(_redacted(bulk.filter)).decode(),
        "state": bulk.state.value,
        **({"to": bulk.to} if bulk.to else {}),
    }
    if bulk.state is not BulkState.RUNNING:
        facts |= {"done": str(bulk.done), "refused": str(bulk.refused)}
    return facts


def _redacted(filter: JobFilter) -> JobFilter:
    """The filter for the audit log: texts and values of headers may be contents of jobs."""
    headers = {name: redacted(value) for name, value in filter.headers.items()}
    return replace(filter, text=filter.text and redacted(filter.text), headers=headers)


def _read(document: Document) -> BulkAct | None:
    """The bulk act of a document; None if a newer version wrote it, or it is damaged."""
    try:
        return msgspec.json.decode(document.body, type=BulkAct)
    except msgspec.MsgspecError:
        return None


# ── the pace ─────────────────────────────────────────────────────────────────────────────────────

#: A step counts as at least this many jobs: the search costs time even if it finds none.
_LEAST = 50
#: The longest pause (s), much shorter than the time for which a process holds a bulk act.
_LONGEST = 5.0
#: The pause (s) before the act is read again if another process does its steps.
_ELSEWHERE = 0.25


class PacedSteps:
    """Does the steps of one bulk act for `holder` and says how long to pause after each.

    The pause is as long as the step or longer, so that a store that has become slow is left half of the time.
    """

    def __init__(self, acts: BulkActs, id: str, holder: str) -> None:
        self.id = id
        self._acts = acts
        self._holder = holder
        self._changed: int | None = None

    async def next(self) -> tuple[BulkAct | None, float]:
        """Do the next step: what `BulkActs.step` returns, and how long (s) to pause now."""
        began = time.monotonic()
        stepped = await self._acts.step(self.id, self._holder)
        if stepped is None:
            return None, _ELSEWHERE
        changed = 0 if self._changed is None else stepped.changed - self._changed
        self._changed = stepped.changed
        if stepped.state is not BulkState.RUNNING:
            return stepped, 0.0
        return stepped, pause_after_step(time.monotonic() - began, changed, stepped.pace)


def pause_after_step(took: float, changed: int, pace: int) -> float:
    """Seconds to pause after a step of `took` seconds that changed this many jobs."""
    return min(_LONGEST, max(max(changed, _LEAST) / pace - took, took))
