"""change_jobs: the acts of operators, each as `core/changes.py` decides."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import msgspec
from msgspec import UnsetType

from penstock.core.changes import ChangeKind, change_of, is_as_seen
from penstock.core.job import QUEUED, Job, Ref, State
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import (
    AnyAct,
    Changed,
    Enqueued,
    EnqueueStatus,
    JobCompletion,
    JobDiscard,
    JobEdit,
    JobMove,
    JobReschedule,
    JobRetry,
    QueueInfo,
    StateAct,
)
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.layout import NUMBER, STATES, packed
from penstock.stores.redis.script_arguments import CHANGED, form_of, in_bytes, parts_of, tail_of
from penstock.stores.redis.verbs.delivering import MovedJob, carried_by, deliver
from penstock.stores.redis.verbs.known_queues import highest, register
from penstock.stores.redis.verbs.listing import infos_of
from penstock.stores.redis.verbs.producing import answers_of, codes_of, get, register_again, state_of
from penstock.stores.redis.wire.calls import Call
from penstock.stores.text_encoding import storable, storable_error

#: What was seen of a job behind its generation: state, due time, attempts, losses, digest of the payload.
_SEEN = struct.Struct("<BdII40s")
_encode = msgspec.msgpack.Encoder().encode
_NOT_AS_SEEN = b"-"
#: In the table of change_jobs.lua: a job that stays; flags of a change.
_STAYS, _AT_TAIL, _ANEW = 255, 1, 2
#: Added to the status code of a job that has changed.
_HAS_CHANGED = 16
_FIRST_CHANGED = ord("0") + _HAS_CHANGED
#: The answers of the new queue after which a job has left the old one.
_LEFT = (EnqueueStatus.NEW, EnqueueStatus.UNREPLICATED)


def change_jobs(context: Context, acts: Sequence[AnyAct]) -> CallPlan[list[Changed]]:
    """Change jobs by acts of any kind; those in a row that differ only in their jobs go together."""
    done: list[Changed] = []
    for _, some in groupby(acts, _terms):
        alike = list(some)
        if isinstance(alike[0], JobEdit):
            done += yield from _edit(context, cast("list[JobEdit]", alike))
        elif isinstance(alike[0], JobMove):
            done += yield from _move(context, cast("list[JobMove]", alike))
        else:
            done += yield from _change_states(context, cast("list[StateAct]", alike))
    return done


def retry(context: Context, refs: Sequence[Ref], *, completed: bool = True) -> CallPlan[None]:
    """Retry jobs of a flow; `completed`: also completed ones."""
    yield from _change_states(context, [JobRetry(ref, expires_in=None) for ref in refs], completed=completed)


# ── acts that change the state ───────────────────────────────────────────────────────────────────


def _terms(act: AnyAct) -> tuple[str | int, ...]:
    """What the acts of one call have in common.

    Their kind; then delay, due time, attempts left and expiry, as change_jobs.lua reads them.
    """
    match act:
        case JobReschedule(run_at=None):
            return act.verb, act.delay, "", "", "keep"
        case JobReschedule(run_at=int(run_at)):
            return act.verb, "", run_at, "", "keep"
        case JobRetry(attempts=attempts, expires_in=expires_in):
            left = "" if attempts is None else max(1, attempts)
            expiry = "" if expires_in is None else expires_in
            return act.verb, 0, "", left, "keep" if isinstance(expiry, UnsetType) else expiry
        case _:
            return act.verb, 0, "", "", "keep"


def _change_states(
    context: Context, acts: Sequence[StateAct], *, completed: bool = True
) -> CallPlan[list[Changed]]:
    """Change the states of jobs by acts with the same terms."""
    first, refs = acts[0], [act.ref for act in acts]
    parts = parts_of(refs, CHANGED)
    ends, own = isinstance(first, JobDiscard | JobCompletion), None
    if ends:
        words = [_words(act) for act in acts]
        sizes = [len(reason) + len(result) for reason, result in words]
        parts = [(queue, lighter) for queue, part in parts for lighter in in_bytes(part, sizes)]
        own = words.__getitem__
    _, *terms = _terms(cast(AnyAct, first))
    args = [context.floor, _table(first.verb, completed), *terms, 3 if ends else 1]
    codes, _ = yield from codes_of(context, "change_jobs", parts, refs, args, own)
    return [_changed(code) for code in codes]


@functools.cache
def _table(kind: ChangeKind, completed: bool) -> bytes:
    """What this act makes of a job in each state, as change_jobs.lua reads it."""
    table = bytearray()
    for later in (False, True):
        for state in STATES:
            change = change_of(kind, state, later=later)
            if change is None or (state is State.COMPLETED and not completed):
                table += bytes((_STAYS, 0))
            else:
                at_tail = change.place is QueuePosition.TAIL
                table += bytes((NUMBER[change.state], at_tail * _AT_TAIL + change.anew * _ANEW))
    return bytes(table)


def _words(act: StateAct) -> tuple[bytes, bytes]:
    """The reason and the result of an act that ends a job."""
    assert isinstance(act, JobDiscard | JobCompletion)
    result = act.result if isinstance(act, JobCompletion) else None
    return storable(act.reason).encode(), b"" if result is None else b"r" + result


def _changed(code: str) -> Changed:
    if ord(code) < _FIRST_CHANGED:
        return Changed(state_of(code))
    return Changed(state_of(chr(ord(code) - _HAS_CHANGED)), True)


# ── edit and move ────────────────────────────────────────────────────────────────────────────────


def _edit(context: Context, edits: Sequence[JobEdit]) -> CallPlan[list[Changed]]:
    """Give queued jobs new arguments, each in a script."""
    calls: list[Call] = []
    for one in edits:
        digest, _ = context.profiles.write(one.new)
        args = (context.floor, packed(one.seen.id), _seen(one.seen), form_of(one.new, 1))
        # not repeatable: a second run would find other arguments
        calls.append(
            context.call("edit_jobs", [one.seen.queue], [*args, tail_of(one.new, digest)], repeatable=False)
        )
    done: list[Changed] = []
    for one, (changed, generation) in zip(edits, raise_errors((yield calls)), strict=True):
        context.floor = max(context.floor, int(generation))
        done.append(Changed(one.seen.state, True) if changed == 1 else Changed())
    return done


def _move(context: Context, moves: Sequence[JobMove]) -> CallPlan[list[Changed]]:
    """Move jobs, each in one script, which leaves an entry to deliver if the other queue is elsewhere."""
    yield from register(context, {one.new.queue for one in moves})
    if context.clustered and context.steered:
        yield from highest(context)
    refused = (yield from _refused(context, moves)) if context.queue_by_queue else {}
    rest = [n for n in range(len(moves)) if n not in refused]
    calls = [_move_call(context, moves[n]) for n in rest]
    answers = raise_errors((yield calls)) if calls else []
    done: dict[int, Enqueued | None] = dict(refused)
    new: set[str] = set()
    entries: list[tuple[str, bytes]] = []
    for n, answer in zip(rest, answers, strict=True):
        done[n] = _answer(context, moves[n], answer, new, entries)
    if new:
        yield from register_again(context, new)
    if entries:
        yield from deliver(context, entries)
    return [_moved(moves[n], done[n]) for n in range(len(moves))]


def _moved(move: JobMove, answer: Enqueued | None) -> Changed:
    return Changed() if answer is None else Changed(move.seen.state, answer.status in _LEFT, answer)


def _seen(job: Job) -> bytes:
    digest = hashlib.sha1(job.spec.payload, usedforsecurity=False).hexdigest().encode()
    facts = _SEEN.pack(NUMBER[job.state], float(job.run_at), job.attempt, job.lost, digest)
    return job.generation.to_bytes(7, "big") + facts


def _move_call(context: Context, one: JobMove) -> Call:
    new, errors = one.new, tuple(map(storable_error, one.errors))
    moved = MovedJob(new, one.seen.attempt, one.seen.lost, errors, one.checkpoint)
    args: list[bytes | str | int] = [context.floor, packed(new.id), _seen(one.seen)]
    queues = [one.seen.queue]
    if context.queue_by_queue:
        args.append(_encode(moved))
    else:
        digest, text = context.profiles.write(new)
        queues.append(new.queue)
        args += (digest, text, form_of(new, 1), tail_of(new, digest), carried_by(moved))
    # not repeatable: a second run would not find the job
    return context.call("move_jobs", queues, args, repeatable=False, replicas=context.replicas)


def _answer(
    context: Context, one: JobMove, answer: Any, new: set[str], entries: list[tuple[str, bytes]]
) -> Enqueued | None:
    """Read the answer of one move; add a new queue to `new`, and an entry to deliver to `entries`."""
    (highest, created, code, *more), unconfirmed = context.confirmed(answer)
    context.floor = max(context.floor, int(highest))
    if code == _NOT_AS_SEEN:
        return None
    if created:
        new.add(one.new.queue)
    (moved,) = answers_of(context, [one.new], [highest, (), code, *more], new)
    if moved.status is not EnqueueStatus.NEW:
        return moved
    if unconfirmed:  # a prune delivers the entry, when the removal is safe
        return Enqueued(EnqueueStatus.UNREPLICATED, one.new.id, cause=unconfirmed)
    if context.queue_by_queue and more:
        entries.append((one.seen.queue, more[0]))
    return moved


def _refused(context: Context, moves: Sequence[JobMove]) -> CallPlan[dict[int, Enqueued | None]]:
    """The moves that a queue on another server refuses, and those of jobs that are not as they were seen.

    The scripts compare again, but only with the old queue: a job that was moved there exists in the new one.
    """
    names = list(dict.fromkeys(one.new.queue for one in moves))
    infos = {info.name: info for info in (yield from infos_of(context, names)) if info is not None}
    found = yield from get(context, [ref for one in moves for ref in (one.seen.ref, one.new.ref)])
    refused: dict[int, Enqueued | None] = {}
    coming: Counter[str] = Counter()
    for n, (one, job, other) in enumerate(zip(moves, found[::2], found[1::2], strict=True)):
        queue, id = one.new.queue, one.new.id
        if job is None or not is_as_seen(job, one.seen):
            refused[n] = None
            continue
        status = EnqueueStatus.EXISTS if other is not None else _status(infos.get(queue), coming[queue])
        if status is EnqueueStatus.NEW:
            coming[queue] += 1
        else:
            size = infos[queue].limits.max_size if status is EnqueueStatus.FULL else None
            refused[n] = Enqueued(status, id, size=size)
    return refused


def _status(queue: QueueInfo | None, coming: int) -> EnqueueStatus:
    if queue is None:
        return EnqueueStatus.NEW
    if queue.closed:
        return EnqueueStatus.CLOSED
    size = sum(n for state, n in queue.counts.items() if state in QUEUED)
    most = queue.limits.max_size
    return EnqueueStatus.FULL if most is not None and size + coming >= most else EnqueueStatus.NEW
