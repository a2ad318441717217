"""fetch: lease available jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from penstock.core.job import Job
from penstock.stores.contract import MOST_FETCHED, Fetched, Share
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import MISSING, call_each, run_for_queue, skips_corrupt_queues
from penstock.stores.redis.layout import UNDECODABLE
from penstock.stores.redis.reading import Row, leased_jobs, read_quickly
from penstock.stores.redis.records import leased, leased_run
from penstock.stores.redis.script_arguments import BATCH, chunks
from penstock.stores.redis.subscriber import DispatchedJob
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.verbs.leases import leased_rows, under_token

#: The quota of a queue that is only searched for leases under the token.
_TOKEN_ONLY = -1


@skips_corrupt_queues
def fetch(
    context: Context,
    queues: Sequence[Share],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    charge: bool,
) -> CallPlan[Fetched]:
    """Lease available jobs of these queues to a worker; a repeated token returns its existing leases."""
    repeated = context.was_used(token)
    others = context.used_before(token, [share.queue for share in queues])
    queues = [*queues, *(Share(queue, _TOKEN_ONLY, 0) for queue in others)] if others else queues
    ask_for = _Fetching(context, lease, worker, token, charge)
    if context.queue_by_queue and len(queues) > 1:
        found = yield from _fetch_over_slots(context, ask_for, queues, limit)
    elif len(queues) > MOST_FETCHED:
        found = yield from _fetch_in_parts(context, ask_for, queues, limit, repeated=repeated)
    else:
        found = yield from ask_for.all(queues, limit)
    aside = context.set_asides.take()
    return msgspec.structs.replace(found, set_aside=aside) if aside else found


class _Fetching:
    """One fetch: one script over all queues, or several in a row."""

    def __init__(self, context: Context, lease: int, worker: str, token: str, charge: bool) -> None:
        self._context = context
        self._lease = lease
        self._worker = worker
        self.token = token
        self._charge = int(charge)
        self._again = False  # True if the last script found leases under the token
        #: The tasks of the worker, for parked jobs. "!": the script reads the announcement of the worker.
        #: "?": on a Cluster that key is in another slot, and the script asks for the tasks if it needs them.
        self._known: bytes | str = "?" if context.clustered else "!"

    def all(self, shares: Sequence[Share], limit: int, *, anew: bool = True) -> CallPlan[Fetched]:
        """Fetch up to `limit` jobs, with as many scripts as necessary."""
        found = yield from self._some(shares, limit, anew=anew)
        while not self._again and 0 < len(found.jobs) < limit and len(found.jobs) % BATCH == 0:
            given = Counter(job.queue for job in found.jobs)
            rest = [_rest_of(share, given[share.queue]) for share in shares]
            more = yield from self._some(rest, limit - len(found.jobs), anew=False)
            if not more.jobs:
                break
            found = Fetched(found.jobs + more.jobs, found.now, more.due, more.opens_at, kept=more.kept)
        return found

    def _some(self, shares: Sequence[Share], limit: int, *, anew: bool) -> CallPlan[Fetched]:
        """Fetch with one script. `anew=False`: leases under the token belong to this same fetch.

        Such a script would lease twice if it were repeated. If its reply is lost, the whole fetch is
        repeated.
        """
        names = [share.queue for share in shares]
        while True:
            args: list[bytes | str | int] = [min(limit, BATCH), self._lease, self._worker, self.token]
            args += (self._charge, int(anew), self._known)
            for share in shares:
                args += (share.quota, share.cap, "" if share.free is None else share.free)
            call = self._context.call("fetch", names, args)
            if self._known == "!":
                call = call._replace(redis_keys=(*call.redis_keys, self._context.redis_keys.workers))
            call = call._replace(repeatable=anew)
            (answer,) = raise_errors((yield [call]))
            if answer[2] != b"tasks":
                break
            self._known = yield from self._announced()
        now, due = int(answer[0]), int(answer[1]) if answer[1] else None
        self._again = answer[2] == b"again"
        if self._again:
            jobs = yield from leased_rows(self._context, names, answer[4:])
        else:
            quickly = yield from read_quickly(self._context, lambda: self._read(names, answer, now))
            jobs = (yield from self._one_by_one(names, answer, now)) if quickly is None else quickly
        kept = tuple(names[int(number) - 1] for number in answer[2].split()[1:])
        return Fetched(jobs, now, due, int(answer[3]) if answer[3] else None, kept=kept)

    def _announced(self) -> CallPlan[bytes]:
        """Return the tasks that the worker has announced, as msgpack, for a script that found parked jobs."""
        key = self._context.redis_keys.workers
        (said,) = yield from call_each(self._context, [(SHARED, command(key, "HGET", key, self._worker))])
        try:
            info = _read_announced((b"" if said in (None, MISSING) else said)[8:])
        except UNDECODABLE:  # the next announcement replaces it
            info = _Announced()
        return msgspec.msgpack.encode(info)

    def _read(self, names: list[str], answer: list[Any], now: int) -> list[Job]:
        """Read all jobs of an answer; raises if one of them cannot be read."""
        profiles, worker, token, charge = self._context.profiles, self._worker, self.token, self._charge
        jobs: list[Job] = []
        at = 4
        while at < len(answer) and answer[at]:
            queue, n = names[answer[at] - 1], answer[at + 1]
            if n < 0:  # a limited queue: its jobs come with their starts
                end = at + 2 - 3 * n
                jobs += [
                    leased(profiles, queue, id, record, int(start), worker, token, charge)
                    for id, record, start in zip(
                        *(answer[at + 2 + k : end : 3] for k in range(3)), strict=True
                    )
                ]
            else:
                end = at + 2 + 2 * n
                ids, records = answer[at + 2 : end : 2], answer[at + 3 : end : 2]
                rows = zip(ids, records, strict=True)
                run = leased_run(profiles, queue, rows, now, worker, token, charge)
                self._context.stored_ids.add(zip([job.spec.id for job in run], ids, strict=True))
                jobs += run
            at = end
        if at < len(answer):  # the rest was set aside
            self._context.note_set_aside(answer[at + 2 :])
        return jobs

    def _one_by_one(self, names: list[str], answer: list[Any], now: int) -> CallPlan[list[Job]]:
        """Read the jobs of an answer one by one, and set aside those that cannot be read."""
        rows: list[Row] = []
        at = 4
        while at < len(answer) and answer[at]:
            queue, n = names[answer[at] - 1], answer[at + 1]
            width = 3 if n < 0 else 2
            end = at + 2 + abs(n) * width
            rows += [
                (queue, *answer[i : i + 2], int(answer[i + 2]) if n < 0 else now)
                for i in range(at + 2, end, width)
            ]
            at = end
        if at < len(answer):
            self._context.note_set_aside(answer[at + 2 :])
        profiles, worker, token, charge = self._context.profiles, self._worker, self.token, self._charge

        def read(row: Row) -> Job:
            queue, id, record, start = row
            return leased(profiles, queue, id, record, start, worker, token, charge)

        return (yield from leased_jobs(self._context, rows, read))


class _Announced(msgspec.Struct):
    """The tasks and queues that a worker has announced."""

    tasks: list[str] = []
    handled: list[str] = []


_read_announced = msgspec.msgpack.Decoder(_Announced).decode


def _rest_of(share: Share, given: int) -> Share:
    """Return the rest of a queue's share after it has given some jobs."""
    free = None if share.free is None else max(0, share.free - given)
    return Share(share.queue, max(0, share.quota - given), share.cap - given, free)


def _fetch_in_parts(
    context: Context, ask_for: _Fetching, queues: Sequence[Share], limit: int, *, repeated: bool
) -> CallPlan[Fetched]:
    """Fetch from many queues in several scripts, so that none blocks the server for long.

    A repeated fetch first searches for leases, in all parts: its queues may have another order than before.
    """
    parts = chunks(queues, MOST_FETCHED)
    leased: list[Sequence[Share]] = []
    for part in parts if repeated else ():
        if (yield from under_token(context, [share.queue for share in part], ask_for.token)):
            leased.append(part)  # noqa: PERF401 (a comprehension cannot yield)
    found: Fetched | None = None
    jobs: list[Job] = []
    for part in leased or parts:
        found = (yield from ask_for.all(part, limit)).behind(found)
        jobs += found.jobs
        if jobs and not leased:
            break
    assert found is not None
    return msgspec.structs.replace(found, jobs=jobs)


def _fetch_over_slots(
    context: Context, ask_for: _Fetching, queues: Sequence[Share], limit: int
) -> CallPlan[Fetched]:
    """Fetch queue by queue: first the quotas, then the rest of the limit."""
    repeated = yield from under_token(context, [share.queue for share in queues], ask_for.token)
    queues = [share for share in queues if context.why_unusable(share.queue) is None]
    jobs: list[Job] = []
    given = dict.fromkeys((share.queue for share in queues), 0)
    now, dues = 0, []
    opens: dict[str, int | None] = {}
    kept: dict[str, tuple[str, ...]] = {}
    for share in queues:
        room = 0 if repeated else max(0, min(share.quota, share.cap, limit - len(jobs)))
        part = share if share.quota == _TOKEN_ONLY else Share(share.queue, room, room, share.free)
        found = yield from run_for_queue(context, share.queue, ask_for.all([part], room))
        if found is MISSING:
            continue
        now = max(now, found.now)
        if found.due is not None:
            dues.append(found.due)
        given[share.queue] = len(found.jobs)
        opens[share.queue], kept[share.queue] = found.opens_at, found.kept
        jobs += found.jobs
    for share in queues:
        room = 0 if repeated else min(share.cap - given[share.queue], limit - len(jobs))
        if room > 0 and given[share.queue] >= min(share.quota, share.cap):  # the queue may have more
            rest = Share(share.queue, room, room, _rest_of(share, given[share.queue]).free)
            found = yield from run_for_queue(context, share.queue, ask_for.all([rest], room, anew=False))
            if found is MISSING:
                continue
            opens[share.queue], kept[share.queue] = found.opens_at, found.kept
            jobs += found.jobs
    if not now:
        raise context.unavailable(given)
    instants = [instant for instant in opens.values() if instant is not None]
    names = tuple(chain.from_iterable(kept.values()))
    return Fetched(jobs, now, min(dues, default=None), min(instants, default=None), kept=names)


def take_dispatched(context: Context, came: Sequence[DispatchedJob], worker: str) -> CallPlan[Fetched]:
    """Read jobs that arrived leased to this worker, and set aside those that cannot be read."""
    rows = [(one.queue, one.stored, one.record, one.now, worker, one.token, 1) for one in came]
    jobs = yield from leased_jobs(context, rows, lambda row: leased(context.profiles, *row))
    return Fetched(jobs, max(one.now for one in came), set_aside=context.set_asides.take())


def jobs_of_dispatched(context: Context, came: Sequence[DispatchedJob], worker: str) -> list[Job]:
    """Read jobs that arrived leased to this worker; raises UnknownProfile if a profile must be read first."""
    return [
        leased(context.profiles, one.queue, one.stored, one.record, one.now, worker, one.token, 1)
        for one in came
    ]
