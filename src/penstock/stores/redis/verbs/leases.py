"""extend and reclaim: extend leases that are still held, and lease lost jobs to another worker.

The life of a lease. A queue has three keys of leases: `held` (job id → the bytes of the lease: generation,
token, `fetched_at`, flags, worker, reason), `leases` (a sorted set: when each ends, by the server's clock)
and `tokens` (how many leases each fetch has). Every step is one script:

1. A lease begins in `fetch.lua`, or where a job becomes available for an idle worker (`lib/dispatch.lua`, for
   `enqueue.lua` and `promote.lua`). A fetch that is repeated with its token gets the jobs that it has leased
   before (`lib/leases.lua::under_token`).
2. `extend.lua` moves its end, and answers if a cancellation was asked for. `record_steps.lua` moves it, too.
3. `settle.lua` ends it (`lib/leases.lua`) with the outcome of the attempt. All three compare generation
   and token with those that the worker shows: a worker that has lost its lease changes nothing. (A settlement
   by `Ref` shows none. `delete.lua` and `replace_jobs.lua` end leases, too; so does `lib/aside.lua`, of a job
   that cannot be read.)
4. `reclaim.lua` gives the job of a lease that has run out, or whose worker is dead, to its caller under a new
   token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.job import Job
from penstock.stores.contract import Fetched, HeartbeatRequest, LeaseStatus
from penstock.stores.redis.context import CallPlan, Context
from penstock.stores.redis.isolation import MISSING, call_any, call_each, skips_corrupt_queues
from penstock.stores.redis.layout import packed
from penstock.stores.redis.reading import Row, leased_jobs
from penstock.stores.redis.records import job_of
from penstock.stores.redis.script_arguments import (
    BATCH,
    chunks,
    in_bytes,
    lease_prefix,
    numbered,
    progress_bytes,
)
from penstock.stores.redis.verbs.known_queues import known, now_of
from penstock.stores.redis.verbs.maintenance import first_in_order
from penstock.stores.redis.wire.calls import Call

_STATUSES = {"h": LeaseStatus.HELD, "l": LeaseStatus.LOST, "c": LeaseStatus.CANCEL_ASKED}


@skips_corrupt_queues
def extend(context: Context, requests: Sequence[HeartbeatRequest]) -> CallPlan[list[LeaseStatus]]:
    """Extend leases that are still held, and store progress and checkpoints."""
    calls: list[tuple[str, Call]] = []
    places: list[list[int]] = []
    for numbers, names in numbered(context, [request.lease.queue for request in requests]):
        of_these = [place for place, request in enumerate(requests) if request.lease.queue in numbers]
        for part in _by_checkpoints(requests, of_these):
            args: list[bytes | str | int] = []
            for place in part:
                request = requests[place]
                args += (
                    numbers[request.lease.queue],
                    packed(request.lease.id),
                    lease_prefix(request.lease),
                    request.by,
                    int(request.started),
                    progress_bytes(request.progress),
                    b"" if request.checkpoint is None else b"=" + request.checkpoint,
                )
            calls.append((names[0], context.call("extend", names, args)))
            places.append(list(part))
    statuses: list[LeaseStatus] = [LeaseStatus.LOST] * len(requests)
    if calls:
        for part, answer in zip(places, (yield from call_each(context, calls)), strict=True):
            if answer is MISSING:
                for place in part:
                    statuses[place] = LeaseStatus.UNKNOWN
                continue
            for place, code in zip(part, answer.decode(), strict=True):
                statuses[place] = _STATUSES[code]
    return statuses


def _by_checkpoints(requests: Sequence[HeartbeatRequest], places: Sequence[int]) -> list[Sequence[int]]:
    """Split places into parts by count, and by the bytes of their checkpoints."""
    parts = chunks(places, BATCH)
    if all(request.checkpoint is None for request in requests):
        return parts
    sizes = [len(request.checkpoint or b"") for request in requests]
    return [lighter for part in parts for lighter in in_bytes(part, sizes)]


@skips_corrupt_queues
def reclaim(
    context: Context,
    queues: Sequence[str],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    of: Sequence[str] | None,
) -> CallPlan[Fetched]:
    """Lease jobs whose lease has run out, or (`of`) jobs of these workers, to the reclaimer."""
    limit = max(0, min(limit, BATCH))
    if of is not None:
        return (yield from _reclaim_of(context, limit, lease, worker, token, of))
    facts: list[bytes | str | int] = [lease, worker, token]
    if others := context.used_before(token, queues):
        found = yield from _again_anywhere(context, [*queues, *others], limit, facts)
        if found.jobs:
            return found
    if not context.queue_by_queue or len(queues) < 2:
        shares = [(list(queues), limit)] if queues else []
    else:
        repeated = yield from under_token(context, queues, token)
        firsts = [] if repeated else (yield from first_in_order(context, queues, b":leases", limit))
        shares = [([queue], firsts.count(queue)) for queue in queues]
    calls = [(names[0], context.call("reclaim", names, [most, *facts])) for names, most in shares]
    answers = yield from call_any(context, calls)
    now, jobs = 0, []
    for (names, _), answer in zip(shares, answers, strict=True):
        if answer is not MISSING:
            now = max(now, int(answer[0]))
            jobs += yield from leased_rows(context, names, answer[1:])
    return Fetched(jobs, now or (yield from now_of(context)), set_aside=context.set_asides.take())


def _again_anywhere(
    context: Context, queues: Sequence[str], limit: int, facts: list[bytes | str | int]
) -> CallPlan[Fetched]:
    """Return the leases of a repeated token, including those in queues that this call does not name."""
    jobs: list[Job] = []
    now = 0
    for names in context.servers(queues):
        (answer,) = yield from call_each(
            context, [(names[0], context.call("reclaim", names, [limit, *facts, "|"]))]
        )
        if answer is not MISSING:
            now = int(answer[0])
            jobs += yield from leased_rows(context, names, answer[1:])
    return Fetched(jobs, now)


def _reclaim_of(
    context: Context, limit: int, lease: int, worker: str, token: str, of: Sequence[str]
) -> CallPlan[Fetched]:
    """Lease all jobs that these workers hold, in any queue: find them, then take those still held."""
    queues = yield from known(context)
    now = 0
    repeated = bool(queues) and (yield from under_token(context, queues, token))
    wanted: dict[str, list[bytes]] = {}
    if not repeated:
        held = yield from held_by(context, queues, set(of))
        for _, queue, id in sorted(held)[:limit]:
            wanted.setdefault(queue, []).append(id)
    names_now = queues if repeated else sorted(wanted)
    context.used_before(token, names_now)
    calls = []
    for queue in names_now:
        pairs: list[bytes | str | int] = []
        for id in wanted.get(queue, ()):
            pairs += (1, id)
        call = context.call("reclaim", [queue], [limit, lease, worker, token, *of, "|", *pairs])
        calls.append((queue, call))
    answers = yield from call_each(context, calls)
    jobs: list[Job] = []
    for queue, answer in zip(names_now, answers, strict=True):
        if answer is not MISSING:
            now = max(now, int(answer[0]))
            jobs += yield from leased_rows(context, [queue], answer[1:])
    now = now or (yield from now_of(context))
    jobs.sort(key=lambda job: job.generation)
    return Fetched(jobs, now, set_aside=context.set_asides.take())


def held_by(
    context: Context, queues: Sequence[str], workers: set[str]
) -> CallPlan[list[tuple[int, str, bytes]]]:
    """Find jobs that these workers hold: (generation, queue, stored id). Reads the leases in steps."""
    found: set[tuple[int, str, bytes]] = set()
    cursors: dict[str, bytes] = dict.fromkeys(queues, b"0")
    while cursors:
        calls = [
            context.on_key(queue, b":held", "HSCAN", cursor, "COUNT", 1_000)
            for queue, cursor in cursors.items()
        ]
        for (queue, _), answer in zip(calls, (yield from call_each(context, calls)), strict=True):
            if answer is MISSING:
                del cursors[queue]
                continue
            cursor, fields = answer
            for i in range(0, len(fields), 2):
                held = fields[i + 1]  # the layout of a lease: records.py
                at = 8 + (held[7] if len(held) > 7 else 0) + 9
                size = int.from_bytes(held[at : at + 2], "little")
                if held[at + 2 : at + 2 + size].decode(errors="replace") in workers:
                    found.add((int.from_bytes(held[:7], "big"), queue, fields[i]))
            if cursor == b"0":
                del cursors[queue]
            else:
                cursors[queue] = cursor
    return list(found)


def under_token(context: Context, queues: Sequence[str], token: str) -> CallPlan[bool]:
    """Return True if one of these queues has leases under this token."""
    calls = [context.on_key(queue, b":tokens", "HEXISTS", token) for queue in queues]
    return any(answer is not MISSING and answer for answer in (yield from call_any(context, calls)))


def leased_rows(context: Context, names: Sequence[str], answer: list[Any]) -> CallPlan[list[Job]]:
    """Read jobs from rows of four values: number of the queue, id, record, lease.

    A row that begins with 0 is a job that was set aside: 0, id, the queue's key, cause.
    """
    rows: list[Row] = []
    for i in range(0, len(answer), 4):
        number, id, record, held = answer[i : i + 4]
        if number:
            rows.append((names[int(number) - 1], id, record, held))
        else:
            context.note_set_aside([record, id, held])
    return (yield from leased_jobs(context, rows, lambda row: job_of(context.profiles, *row)))
