"""Read a flow, compute a change of it, and store the change unless the flow has changed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from penstock.core.flow import NodeState, end_of_flow, outcome_of
from penstock.core.flow_engine import Sweep
from penstock.core.job import Ref
from penstock.stores.contract import FLOW_STEP
from penstock.stores.redis.batching import HEAVY, chunks
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.flow_session import FlowChangeSet, node_fields, read_head
from penstock.stores.redis.keys import packed
from penstock.stores.redis.script_arguments import form_of, tail_of
from penstock.stores.redis.verbs.known_queues import now_of, register_for_flows
from penstock.stores.redis.verbs.operating import retry
from penstock.stores.redis.verbs.outbox import deliver
from penstock.stores.redis.verbs.producing import cancel, get
from penstock.stores.redis.wire.calls import ServerRun
from penstock.stores.redis.wire.faults import ServerRestarted

__all__ = [
    "commit",
    "flow_key",
    "note_ended",
    "note_missing",
    "note_missing_jobs",
    "open_flow",
    "proceed",
    "read_nodes",
    "release",
    "remove",
    "was_added",
]


_FIELDS = 1_000
_QUEUES = 200


def flow_key(context: Context, ref: Ref) -> bytes:
    return context.redis_keys.queue(ref.queue) + b":flow/" + ref.id.encode()


def open_flow(context: Context, ref: Ref) -> CallPlan[FlowChangeSet | None]:
    """Read a flow without its nodes."""
    key = flow_key(context, ref)
    fields = ("v", "head", "q", "p")
    run = ServerRun()
    ((version, head, counted, ended),) = raise_errors(
        (yield [command(key, "HMGET", key, *fields)._replace(run=run)])
    )
    if head is None:
        return None
    now = int((yield from now_of(context)))
    session = FlowChangeSet(read_head(head, counted), version or b"", int(counted or 0), now, run)
    session.parent_ended = ended
    return session


def read_nodes(
    context: Context, ref: Ref, session: FlowChangeSet, indexes: Sequence[int], *, inputs: bool = False
) -> CallPlan[None]:
    """Read nodes into the session."""
    key, kinds = flow_key(context, ref), b"nji" if inputs else b"nj"
    step = len(kinds)
    parts = chunks(session.unread(indexes), _FIELDS)
    calls = [command(key, "HMGET", key, *node_fields(part, kinds)) for part in parts]
    answers = raise_errors((yield calls)) if calls else []
    for part, found in zip(parts, answers, strict=True):
        for n, index in enumerate(part):
            session.read(index, *found[n * step : n * step + step])


def was_added(context: Context, ref: Ref, session: FlowChangeSet, key: str) -> CallPlan[bool]:
    """Whether a call with this key has added members before; if not, the change notes the key."""
    flow, field = flow_key(context, ref), b"a" + key.encode()
    (found,) = raise_errors((yield [command(flow, "HEXISTS", flow, field)]))
    session.added = field
    return bool(found)


def proceed(context: Context, ref: Ref, session: FlowChangeSet, budget: int = FLOW_STEP) -> CallPlan[int]:
    """Let the engine do up to `budget` steps, with the nodes that they need; return the steps done.

    Fewer, if they enqueue more jobs than one script may.
    """
    engine, head, done = session.engine, session.head, 0
    while True:
        left = min(budget - done, HEAVY)
        steps = engine.advance(left)
        done += steps
        if done >= budget or len(session.jobs) >= HEAVY or not head.busy:
            return done
        if steps:
            continue
        if head.work:
            wanted = engine.wanted(left)
        else:
            wanted = range(head.cursor, min(head.total, head.cursor + left))
        before = session.unread(wanted)
        yield from read_nodes(context, ref, session, before)
        yield from note_ended(context, session, before)
        if head.sweep in (Sweep.REOPEN, Sweep.RETRY) or session.has_again(before):
            yield from note_missing(context, session, before)


def note_ended(context: Context, session: FlowChangeSet, indexes: Sequence[int]) -> CallPlan[None]:
    """Note which of the jobs that others have enqueued for these nodes have ended."""
    if not (refs := session.externals(indexes)):
        return
    for ref, job in zip(refs, (yield from get(context, refs)), strict=True):
        if job is None or job.ended:
            session.ended[ref] = NodeState.GONE if job is None else outcome_of(job.state)


def release(context: Context, ref: Ref, session: FlowChangeSet, budget: int) -> CallPlan[int]:
    """Let the engine remove results that no node needs any longer; return the steps done."""
    done, key = 0, flow_key(context, ref)
    while session.head.releases and done < budget:
        index, at, _ = session.head.releases[0]
        yield from read_nodes(context, ref, session, [index])
        (inputs,) = raise_errors((yield [command(key, "HGET", key, b"i%d" % index)]))
        session.read_inputs(index, inputs)
        yield from read_nodes(context, ref, session, session.inputs(index)[at : at + budget - done])
        done += session.engine.release(budget - done)
    return done


def note_missing(context: Context, session: FlowChangeSet, indexes: Sequence[int]) -> CallPlan[None]:
    """Note which jobs of failed or cancelled nodes cannot be retried: they are gone, or unreadable."""
    nodes = [session.node(index) for index in indexes]
    failed = (NodeState.DEAD, NodeState.CANCELLED)
    wanted = [
        node.index
        for node in nodes
        if node is not None and (node.state in failed or node.swept or node.again)
    ]
    yield from note_missing_jobs(context, session, wanted)


def note_missing_jobs(context: Context, session: FlowChangeSet, indexes: Sequence[int]) -> CallPlan[None]:
    """Note which of these nodes have a job that cannot be retried."""
    nodes = [session.node(index) for index in indexes]
    refs = [node.ref for node in nodes if node is not None and node.ref]
    if refs:
        jobs = yield from get(context, refs)
        session.missing |= {
            ref for ref, job in zip(refs, jobs, strict=True) if job is None or job.spec.unreadable
        }


def commit(context: Context, ref: Ref, session: FlowChangeSet, replicas: int = 0) -> CallPlan[bool]:
    """Store the change, and enqueue jobs. False: nothing was stored, because the flow has changed.

    So it may have if the server has restarted since it was read: without its last moments, and without the
    retries and cancellations of this change.

    `replicas`: how many must acknowledge it; if fewer do, `session.unconfirmed` says so.
    Jobs are retried and cancelled first, in the order of the passes: if this process dies in between, that
    happens again.
    """
    if session.cancels and context.apart:
        yield from _deliver_all(context, ref.queue)  # a job of a node that has started may still be there
    if session.retries:
        yield from retry(context, session.retries, None, None, completed=False)
    if session.reruns:
        yield from retry(context, session.reruns, None, None)
    for reason in dict.fromkeys(reason for _, reason in session.cancels):
        yield from cancel(context, [one for one, why in session.cancels if why == reason], reason)
    names = list(dict.fromkeys(job.queue for job in session.jobs))
    yield from register_for_flows(context, {ref.queue, *names, *session.queues_of_enqueued})
    numbers = {ref.queue: 1}
    if not context.apart:
        for name in [*names, *(queue for queue, _ in session.counted)][:_QUEUES]:
            numbers.setdefault(name, len(numbers) + 1)
    args = _arguments(context, ref, session, numbers)
    call = context.call("flow_commit", list(numbers), args, repeatable=False, replicas=replicas)
    (answer,) = yield [call._replace(run=session.run)]
    if isinstance(answer, ServerRestarted):
        return False
    raise_errors([answer])
    (stored, highest, out), session.unconfirmed = context.confirmed(answer)
    context.floor = max(context.floor, int(highest))
    if not stored:
        return False
    session.removed = {queue for queue, _ in session.counted if queue in numbers}
    if out:
        yield from deliver(context, [(ref.queue, name) for name in out])
    return True


def _deliver_all(context: Context, queue: str) -> CallPlan[None]:
    """Deliver what the outbox of this queue has."""
    key = context.redis_keys.queue(queue) + b":out"
    (names,) = raise_errors((yield [command(key, "HKEYS", key)]))
    if names:
        yield from deliver(context, [(queue, name) for name in names])


def remove(context: Context, ref: Ref, session: FlowChangeSet | None) -> CallPlan[None]:
    """Remove a flow and its nodes, unless it has changed since it was read: it may have been retried."""
    version = b"" if session is None else session.version
    args: list[bytes | str | int] = [context.floor, ref.id, version, "", 0, "gone", 0]
    raise_errors((yield [context.call("flow_commit", [ref.queue], args, repeatable=False)]))


def _arguments(
    context: Context, ref: Ref, session: FlowChangeSet, numbers: dict[str, int]
) -> list[bytes | str | int]:
    """The arguments of flow_commit.lua."""
    profiles: dict[bytes, bytes] = {}
    blob: list[bytes] = []
    for job in session.jobs:
        number = numbers.get(job.queue, 0)
        facts = (b"", b"", msgspec.msgpack.encode(job))
        if number:
            digest, text = context.profiles.write(job)
            profiles[digest] = text
            facts = (packed(job.id), form_of(job, number), tail_of(job, digest))
        blob.append(bytes((number,)))
        blob += [part for fact in facts for part in (len(fact).to_bytes(4, "little"), fact)]
    sets, dels = session.fields()
    ends = [part for queue, stamp in session.counted if queue in numbers for part in (numbers[queue], stamp)]
    look = session.look_at
    args: list[bytes | str | int] = [
        context.floor,
        ref.id,
        session.version,
        os.urandom(8),
        session.head.created_at,
    ]
    args += ["" if look is None else look, session.uncounted]
    args += [int(session.scripts_count), int(session.needs_all_ends), len(profiles)]
    for pair in profiles.items():
        args += pair
    news = session.news_for_parent
    parent = packed(session.head.spec.wakes) if news else b""
    woken = b"" if session.wakes is None else packed(session.wakes.id)
    end = packed(end_of_flow(ref).id) if session.is_news_for_waiters else b""
    checks = session.checks()
    lists = [part for some in (checks, sets, dels, ends) for part in (len(some), *some)]
    return [*args, *lists, b"".join(blob), end, woken, parent, news]
