"""Read a flow, compute a change of it, and store the change unless the flow has changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.flow import NodeState
from penstock.core.flow_engine import Sweep
from penstock.core.job import Ref
from penstock.stores.contract import FLOW_STEP
from penstock.stores.redis.batching import HEAVY, chunks
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.flow_session import FlowChangeSet, node_fields, read_head
from penstock.stores.redis.keys import packed
from penstock.stores.redis.script_arguments import form_of, tail_of
from penstock.stores.redis.verbs.known_queues import now_of, register
from penstock.stores.redis.verbs.operating import retry
from penstock.stores.redis.verbs.outbox import deliver
from penstock.stores.redis.verbs.producing import cancel, get

__all__ = ["commit", "flow_key", "note_missing", "open_flow", "proceed", "read_nodes"]


_FIELDS = 1_000
_QUEUES = 200


def flow_key(context: Context, ref: Ref) -> bytes:
    return context.redis_keys.queue(ref.queue) + b":flow/" + ref.id.encode()


def open_flow(context: Context, ref: Ref) -> CallPlan[FlowChangeSet | None]:
    """Read a flow without its nodes."""
    key = flow_key(context, ref)
    ((version, head, counted),) = raise_errors((yield [command(key, "HMGET", key, "v", "head", "q")]))
    if head is None:
        return None
    now = int((yield from now_of(context)))
    return FlowChangeSet(read_head(head, counted), version or b"", int(counted or 0), now)


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
        if head.sweep in (Sweep.REOPEN, Sweep.RETRY):
            yield from note_missing(context, session, before)


def note_missing(context: Context, session: FlowChangeSet, indexes: Sequence[int]) -> CallPlan[None]:
    """Note which jobs of failed or cancelled nodes cannot be retried: they are gone, or unreadable."""
    nodes = [session.node(index) for index in indexes]
    failed = (NodeState.DEAD, NodeState.CANCELLED)
    refs = [
        node.ref for node in nodes if node is not None and node.ref and (node.state in failed or node.swept)
    ]
    if refs:
        jobs = yield from get(context, refs)
        session.missing |= {
            ref for ref, job in zip(refs, jobs, strict=True) if job is None or job.spec.unreadable
        }


def commit(context: Context, ref: Ref, session: FlowChangeSet) -> CallPlan[bool]:
    """Store the change, and enqueue jobs. False: nothing was stored, because the flow has changed.

    Jobs are retried and cancelled first, in the order of the passes: if this process dies in between, that
    happens again.
    """
    if session.retries:
        yield from retry(context, session.retries, None, None)
    for reason in dict.fromkeys(reason for _, reason in session.cancels):
        yield from cancel(context, [one for one, why in session.cancels if why == reason], reason)
    names = list(dict.fromkeys(job.queue for job in session.jobs))
    yield from register(context, {ref.queue, *names})
    numbers = {ref.queue: 1}
    if not context.apart:
        for name in names[:_QUEUES]:
            numbers.setdefault(name, len(numbers) + 1)
    call = context.call(
        "flow_commit", list(numbers), _arguments(context, ref, session, numbers), repeatable=False
    )
    ((stored, highest, out),) = raise_errors((yield [call]))
    context.floor = max(context.floor, int(highest))
    if not stored:
        return False
    if out:
        yield from deliver(context, [(ref.queue, name) for name in out])
    return True


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
    look = session.look_at
    args: list[bytes | str | int] = [context.floor, ref.id, session.version, session.head.created_at]
    args += ["" if look is None else look, session.uncounted]
    args += [int(session.scripts_count), int(session.needs_all_ends), len(profiles)]
    for pair in profiles.items():
        args += pair
    checks = session.checks()
    return [*args, len(checks), *checks, len(sets), *sets, len(dels), *dels, b"".join(blob)]
