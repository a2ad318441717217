"""enqueue, get and cancel."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.errors import EnqueueUnknown, StoreCorrupt, StoreUnavailable
from penstock.core.job import Job, NewJob, Ref, State
from penstock.stores.contract import Enqueued, EnqueueStatus, Replacement, unwritable
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.layout import STATES, UNWRITABLE, id_of, packed
from penstock.stores.redis.reading import shown
from penstock.stores.redis.script_arguments import (
    BATCH,
    CHANGED,
    MOST_BYTES,
    chunks,
    form_of,
    id_list,
    in_bytes,
    parts_of,
    tail_of,
)
from penstock.stores.redis.verbs.known_queues import highest, register
from penstock.stores.redis.verbs.waiting import notify_all_waiters
from penstock.stores.redis.wire.calls import Call
from penstock.stores.redis.wire.faults import ReplyLost
from penstock.stores.text_encoding import storable

_STATUSES = {
    ord("n"): EnqueueStatus.NEW,
    ord("x"): EnqueueStatus.EXISTS,
    ord("c"): EnqueueStatus.CLOSED,
    ord("d"): EnqueueStatus.DUPLICATE,
    ord("f"): EnqueueStatus.FULL,
    ord("r"): EnqueueStatus.REPLACED,
}
_OF_ANOTHER = (EnqueueStatus.DUPLICATE, EnqueueStatus.REPLACED)
_N, _NEW = ord("n"), EnqueueStatus.NEW
#: The status code of the state with the number 0.
_FIRST_STATE = ord("0")
#: A queue, and the positions of its refs in the call.
Part = tuple[str, Sequence[int]]
#: Generations reserved after each job of a call over several servers, for batch jobs.
_BATCHES = 32
#: Most queues of one script, because their numbers are single bytes.
MOST_QUEUES = 250


def enqueue(context: Context, jobs: Sequence[NewJob]) -> CallPlan[list[Enqueued]]:
    """Store new jobs. A call of one step raises its error; a call of several steps answers it per job."""
    if len(jobs) == 1 and not context.clustered and jobs[0].queue in context.listed:
        return (yield from _enqueue_one(context, jobs[0]))
    if not jobs:
        return []
    unlisted = context.unlisted({job.queue for job in jobs})
    if unlisted:  # first, so that every queue with jobs is on the list
        yield from register(context, unlisted)
    elif len(jobs) == 1 and not context.steered:
        return (yield from _enqueue_one(context, jobs[0]))
    if context.clustered and context.steered:
        yield from highest(context)
    enqueued: list[Enqueued | None] = [None] * len(jobs)
    new: set[str] = set()
    parts = _parts(context, jobs)
    batches = [[jobs[place] for place in part] for part in parts]
    spread = context.clustered and len(parts) > 1 and len(jobs) <= BATCH
    room = _BATCHES if spread and any(job.batch_terms is not None for job in jobs) else 1
    try:
        calls = [
            _enqueue_call(context, batch, [room * place for place in part] if spread else ())
            for part, batch in zip(parts, batches, strict=True)
        ]
    except UNWRITABLE:
        return (yield from _without_unwritable(context, jobs))
    answers = yield calls
    if any(isinstance(answer, StoreCorrupt) for answer in answers):  # the next verbs run queue by queue
        context.corrupt.isolate()
    raise_whole(answers, jobs)
    for part, batch, answer in zip(parts, batches, answers, strict=True):
        for place, one in zip(part, answers_of(context, batch, answer, new), strict=True):
            enqueued[place] = one
    if new:
        yield from register_again(context, new)
    return [one for one in enqueued if one is not None]


def _enqueue_one(context: Context, job: NewJob) -> CallPlan[list[Enqueued]]:
    """As `enqueue`, without what only several jobs need: 4.3 instead of 9.4 µs."""
    try:
        digest, text = context.profiles.write(job)
        args = (context.floor, b"", 1, digest, text, packed(job.id), form_of(job, 1), tail_of(job, digest))
    except UNWRITABLE as error:
        return [unwritable(job, error)]
    call = context.call("enqueue", (job.queue,), args, repeatable=False, replicas=context.replicas)
    (answer,) = yield [call]
    if isinstance(answer, Exception):
        if isinstance(answer, StoreCorrupt):
            context.corrupt.isolate()
        raise_whole([answer], [job])
    new: set[str] = set()
    enqueued = answers_of(context, (job,), answer, new)
    if new:
        yield from register_again(context, new)
    return enqueued


def replace_jobs(context: Context, replacements: Sequence[Replacement]) -> CallPlan[list[Enqueued]]:
    """Enqueue each job in the place of another one of its queue, each pair in one script."""
    jobs = [one.new for one in replacements]
    if unlisted := context.unlisted({job.queue for job in jobs}):
        yield from register(context, unlisted)
    enqueued: dict[int, Enqueued] = {}
    calls: list[Call] = []
    for n, one in enumerate(replacements):
        try:
            calls.append(_replace_call(context, one))
        except UNWRITABLE as error:
            enqueued[n] = unwritable(one.new, error)
    sent = [n for n in range(len(jobs)) if n not in enqueued]
    answers = (yield calls) if calls else []
    raise_whole(answers, [jobs[n] for n in sent])
    new: set[str] = set()
    for n, answer in zip(sent, answers, strict=True):
        (enqueued[n],) = answers_of(context, [jobs[n]], answer, new)
    if new:
        yield from register_again(context, new)
    return [enqueued[n] for n in range(len(jobs))]


def _replace_call(context: Context, one: Replacement) -> Call:
    digest, text = context.profiles.write(one.new)
    facts = (packed(one.new.id), form_of(one.new, 1), tail_of(one.new, digest))
    args = (context.floor, digest, text, packed(one.old.id), *facts)
    return context.call("replace_jobs", [one.new.queue], args, repeatable=False, replicas=context.replicas)


def register_again(context: Context, new: set[str]) -> CallPlan[None]:
    """Put queues on the list that an enqueue has created: they may have been dropped since the last time."""
    try:
        yield from register(context, new)
    except StoreUnavailable:  # the jobs are stored; the next enqueue puts the queue on the list
        context.listed -= new


def _without_unwritable(context: Context, jobs: Sequence[NewJob]) -> CallPlan[list[Enqueued]]:
    """Enqueue all jobs except those that a record cannot hold, which are answered FAILED."""
    failed: dict[int, Enqueued] = {}
    for n, job in enumerate(jobs):
        try:
            _enqueue_call(context, [job], ())
        except UNWRITABLE as error:
            failed[n] = unwritable(job, error)
    stored = iter((yield from enqueue(context, [job for n, job in enumerate(jobs) if n not in failed])))
    return [failed[n] if n in failed else next(stored) for n in range(len(jobs))]


def _parts(context: Context, jobs: Sequence[NewJob]) -> list[Sequence[int]]:
    """Split positions of jobs into parts for one script each, by count and bytes."""
    parts = _parts_by_count(context, jobs)
    sizes = [len(job.payload) for job in jobs]
    if sum(sizes) <= MOST_BYTES:
        return parts
    return [lighter for part in parts for lighter in in_bytes(part, sizes)]


def _parts_by_count(context: Context, jobs: Sequence[NewJob]) -> list[Sequence[int]]:
    """Split positions of jobs into parts for one script each, by count."""
    first = jobs[0].queue
    places = range(len(jobs))
    if all(job.queue == first for job in jobs):
        return chunks(places, BATCH)
    if not context.queue_by_queue:
        parts = chunks(places, BATCH)
        if all(len({jobs[place].queue for place in part}) <= MOST_QUEUES for part in parts):
            return parts
    return [part for _, part in parts_of([job.ref for job in jobs], BATCH)]


def _enqueue_call(context: Context, jobs: Sequence[NewJob], places: Sequence[int]) -> Call:
    """Return the call for one part. `places`: the positions of its jobs in a call over several servers."""
    numbers: dict[str, int] = {}
    profiles: dict[bytes, bytes] = {}
    args: list[bytes | str | int] = []
    write = context.profiles.write
    for job in jobs:
        number = numbers.get(job.queue)
        if number is None:
            number = numbers[job.queue] = len(numbers) + 1
        digest, text = write(job)
        profiles[digest] = text
        args += (packed(job.id), form_of(job, number), tail_of(job, digest))
    head: list[bytes | str | int] = [context.floor, struct.pack(f"<{len(places)}H", *places), len(profiles)]
    for pair in profiles.items():
        head += pair
    return context.call("enqueue", list(numbers), [*head, *args], repeatable=False, replicas=context.replicas)


def raise_whole(answers: Sequence[Any], jobs: Sequence[NewJob]) -> None:
    """Raise an error of the whole call: no job was stored, or the outcome is unknown for all jobs."""
    kinds = {isinstance(answer, ReplyLost) for answer in answers if isinstance(answer, Exception)}
    if len(kinds) != 1 or not all(isinstance(answer, Exception) for answer in answers):
        return
    if kinds == {True}:
        raise EnqueueUnknown([job.id for job in jobs], str(answers[0])) from answers[0]
    if len({type(answer) for answer in answers}) == 1:
        raise answers[0]


def answers_of(context: Context, jobs: Sequence[NewJob], answer: Any, new: set[str]) -> list[Enqueued]:
    """Return the answer for each job of one part; add the names of new queues to `new`."""
    if isinstance(answer, Exception):
        status = EnqueueStatus.UNKNOWN if isinstance(answer, ReplyLost) else EnqueueStatus.FAILED
        return [Enqueued(status, job.id, cause=str(answer)) for job in jobs]
    answer, cause = context.confirmed(answer)
    if isinstance(answer, int):  # the generation of a plain job
        highest, new_queues, codes, holders = answer, (), b"n", []
    else:
        highest, new_queues, codes, *holders = answer
    context.floor = max(context.floor, int(highest))
    if new_queues:
        names = list(dict.fromkeys(job.queue for job in jobs))
        new |= {names[number - 1] for number in new_queues}
    answers = [
        Enqueued(_NEW, job.id) if code == _N else _answer(job, code, holders)
        for job, code in zip(jobs, codes, strict=True)
    ]
    if not cause:
        return answers
    written = (_NEW, EnqueueStatus.REPLACED)
    return [
        Enqueued(EnqueueStatus.UNREPLICATED, one.id, cause=cause) if one.status in written else one
        for one in answers
    ]


def _answer(job: NewJob, code: int, holders: list[bytes]) -> Enqueued:
    status = _STATUSES[code]
    if status is EnqueueStatus.FULL:
        waits, retry_after, size = map(int, holders.pop(0).split())
        return Enqueued(status, job.id, retry_after, size=size, waits=waits == 1)
    return Enqueued(status, id_of(holders.pop(0)) if status in _OF_ANOTHER else job.id)


def get(context: Context, refs: Sequence[Ref]) -> CallPlan[list[Job | None]]:
    """Read jobs as they are now, None for each that does not exist."""
    parts = parts_of(refs, BATCH)
    found: list[Job | None] = [None] * len(refs)
    while parts:
        answers = raise_errors((yield [context.call("get", [q], id_list(refs, part)) for q, part in parts]))
        rest: list[Part] = []
        for (queue, part), answer in zip(parts, answers, strict=True):
            answered = len(answer) // 2
            there = [n for n in range(answered) if answer[2 * n] is not None]
            rows = [(packed(refs[part[n]].id), answer[2 * n], answer[2 * n + 1]) for n in there]
            jobs = yield from shown(context, queue, rows)
            for n, job in zip(there, jobs, strict=True):
                found[part[n]] = job
            if answered < len(part):  # the script ended early, because its answer was large
                rest.append((queue, part[answered:]))
        parts = rest
    return found


def states_of(
    context: Context, script: str, refs: Sequence[Ref], args: Sequence[bytes | str | int]
) -> CallPlan[tuple[list[State | None], int]]:
    """Run a script that answers one status code per job; return the states, and the sum of its counts."""
    codes, total = yield from codes_of(context, script, parts_of(refs, CHANGED), refs, args)
    return [state_of(code) for code in codes], total


def state_of(code: str) -> State | None:
    """The state of a status code; None: the job does not exist."""
    return None if code == "-" else STATES[ord(code) - _FIRST_STATE]


def codes_of(
    context: Context,
    script: str,
    parts: list[Part],
    refs: Sequence[Ref],
    args: Sequence[bytes | str | int],
    own: Callable[[int], Sequence[bytes | str | int]] | None = None,
) -> CallPlan[tuple[list[str], int]]:
    """Run a script part by part; return its status code of each job, and the sum of its counts.

    `own`: the arguments of the job at a position, besides its id.
    """
    codes = ["-"] * len(refs)
    total = 0
    while parts:
        # one script at a time: the server does those of a pipeline in a row, and nothing for others meanwhile
        queue, part = parts.pop(0)
        jobs = id_list(refs, part)
        if own is not None:
            jobs = [one for id, place in zip(jobs, part, strict=True) for one in (id, *own(place))]
        (answer,) = raise_errors((yield [context.call(script, [queue], [*args, *jobs])]))
        if isinstance(answer, list):
            total += answer[0]
            if len(answer) > 2:
                context.floor = max(context.floor, int(answer[2]))
            answer = answer[1]
        for place, code in zip(part, answer.decode(), strict=False):
            codes[place] = code
        if len(answer) < len(part):  # the script ended early, because batches have many members
            parts.insert(0, (queue, part[len(answer) :]))
    return codes, total


def cancel(context: Context, refs: Sequence[Ref], reason: str) -> CallPlan[list[State | None]]:
    """Cancel queued jobs, and ask running jobs to stop."""
    found, asked = yield from states_of(context, "cancel", refs, [storable(reason).encode()])
    if asked:
        yield from notify_all_waiters(context, "cancels")
    return found
