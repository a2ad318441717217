"""The verbs by which operators change queued jobs: discard, edit_jobs, move_jobs."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.job import DEAD_KEPT, QUEUED, Job, Ref, State
from penstock.core.job_changes import is_as_seen
from penstock.stores.contract import Enqueued, EnqueueStatus, JobEdit, JobMove, QueueInfo
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.keys import packed
from penstock.stores.redis.layout import NUMBER
from penstock.stores.redis.script_arguments import form_of, tail_of
from penstock.stores.redis.verbs.known_queues import highest, register
from penstock.stores.redis.verbs.listing import infos_of
from penstock.stores.redis.verbs.outbox import MovedJob, carried_by, deliver
from penstock.stores.redis.verbs.producing import answers_of, get, register_again, states_of
from penstock.stores.redis.wire.calls import Call
from penstock.stores.text_encoding import storable, storable_error

__all__ = ["discard", "edit_jobs", "move_jobs"]

#: What was seen of a job behind its generation: state, due time, attempts, losses, digest of the payload.
_SEEN = struct.Struct("<BdII40s")
_encode = msgspec.msgpack.Encoder().encode
_NOT_AS_SEEN = b"-"


def discard(context: Context, refs: Sequence[Ref], reason: str) -> CallPlan[list[State | None]]:
    """Make queued and suspended jobs dead."""
    found, _ = yield from states_of(context, "discard", refs, [storable(reason).encode(), DEAD_KEPT])
    return found


def edit_jobs(context: Context, edits: Sequence[JobEdit]) -> CallPlan[list[bool]]:
    """Give queued jobs new arguments, each in a script."""
    calls: list[Call] = []
    for one in edits:
        digest, _ = context.profiles.write(one.new)
        args = (context.floor, packed(one.seen.id), _seen(one.seen), form_of(one.new, 1))
        # not repeatable: a second run would find other arguments
        calls.append(
            context.call("edit_jobs", [one.seen.queue], [*args, tail_of(one.new, digest)], repeatable=False)
        )
    done: list[bool] = []
    for changed, generation in raise_errors((yield calls)) if calls else []:
        context.floor = max(context.floor, int(generation))
        done.append(changed == 1)
    return done


def move_jobs(context: Context, moves: Sequence[JobMove]) -> CallPlan[list[Enqueued | None]]:
    """Move jobs, each in one script; with a note if the other queue is on another server."""
    if not moves:
        return []
    yield from register(context, {one.new.queue for one in moves})
    if context.clustered and context.steered:
        yield from highest(context)
    refused = (yield from _refused(context, moves)) if context.apart else {}
    rest = [n for n in range(len(moves)) if n not in refused]
    calls = [_move_call(context, moves[n]) for n in rest]
    answers = raise_errors((yield calls)) if calls else []
    done: dict[int, Enqueued | None] = dict(refused)
    new: set[str] = set()
    notes: list[tuple[str, bytes]] = []
    for n, answer in zip(rest, answers, strict=True):
        done[n] = _answer(context, moves[n], answer, new, notes)
    if new:
        yield from register_again(context, new)
    if notes:
        yield from deliver(context, notes)
    return [done[n] for n in range(len(moves))]


def _seen(job: Job) -> bytes:
    digest = hashlib.sha1(job.spec.payload, usedforsecurity=False).hexdigest().encode()
    facts = _SEEN.pack(NUMBER[job.state], float(job.run_at), job.attempt, job.lost, digest)
    return job.generation.to_bytes(7, "big") + facts


def _move_call(context: Context, one: JobMove) -> Call:
    new, errors = one.new, tuple(map(storable_error, one.errors))
    moved = MovedJob(new, one.seen.attempt, one.seen.lost, errors, one.checkpoint)
    args: list[bytes | str | int] = [context.floor, packed(new.id), _seen(one.seen)]
    queues = [one.seen.queue]
    if context.apart:
        args.append(_encode(moved))
    else:
        digest, text = context.profiles.write(new)
        queues.append(new.queue)
        args += (digest, text, form_of(new, 1), tail_of(new, digest), carried_by(moved))
    # not repeatable: a second run would not find the job
    return context.call("move_jobs", queues, args, repeatable=False, replicas=context.replicas)


def _answer(
    context: Context, one: JobMove, answer: Any, new: set[str], notes: list[tuple[str, bytes]]
) -> Enqueued | None:
    """Read the answer of one move; add a new queue to `new`, and a note to deliver to `notes`."""
    (highest, created, code, *more), unconfirmed = context.confirmed(answer)
    context.floor = max(context.floor, int(highest))
    if code == _NOT_AS_SEEN:
        return None
    if created:
        new.add(one.new.queue)
    (moved,) = answers_of(context, [one.new], [highest, (), code, *more], new)
    if moved.status is not EnqueueStatus.NEW:
        return moved
    if unconfirmed:  # a prune delivers the note, when the removal is safe
        return Enqueued(EnqueueStatus.UNREPLICATED, one.new.id, cause=unconfirmed)
    if context.apart and more:
        notes.append((one.seen.queue, more[0]))
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
