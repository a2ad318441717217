"""The verbs of flows on Redis."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.errors import NotReplicated
from penstock.core.flow import FlowInfo, FlowNode, FlowState, NewFlow, NewNode
from penstock.core.flow_engine import is_abandoned, joins_on, new_flow
from penstock.core.job import NewJob, Ref, State
from penstock.core.relations import FlowMember
from penstock.stores.contract import FLOW_STEP, FlowChange, FlowPage
from penstock.stores.cursors import FlowPlace, flow_cursor
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.flow_session import RedisFlowSession, node_fields, read_head, shown_node
from penstock.stores.redis.isolation import MISSING, call_each, run_for_queue, skips_corrupt_queues
from penstock.stores.redis.verbs import flow_store
from penstock.stores.redis.verbs.known_queues import known_flow_queues, now_of
from penstock.stores.redis.verbs.producing import get
from penstock.stores.redis.wire.calls import Call

#: Flows of one queue that one `advance_flows` continues, and ends that it counts.
_FLOWS, _ENDS = 10, 500


def put_flow(
    context: Context, spec: NewFlow, nodes: Sequence[NewNode], start: bool
) -> CallPlan[FlowInfo | None]:
    """Store nodes of a flow, and start it."""
    while True:
        session = yield from flow_store.open_flow(context, spec.ref)
        if session is None:
            now = int((yield from now_of(context)))
            session = RedisFlowSession(new_flow(spec, now), b"", 0, now)
        head = session.head
        if head.spec.key != spec.key or not joins_on(head, nodes):
            return None
        if head.state is FlowState.BUILDING:
            for node in nodes:
                if node.index >= head.total:
                    session.add(node)
                    head.stored(1)
            if start:
                yield from flow_store.note_ended(context, session, [node.index for node in nodes])
                session.engine.start(0)
                yield from flow_store.proceed(context, spec.ref, session)
        if (yield from flow_store.commit(context, spec.ref, session, context.replicas)):
            if session.unconfirmed:
                raise NotReplicated([spec.id], session.unconfirmed, "flow")
            return (yield from _info(context, spec.ref))


def add_to_flow(
    context: Context, ref: Ref, join: int, jobs: Sequence[NewJob], key: str = ""
) -> CallPlan[FlowInfo | None]:
    """Add jobs to a running flow, as members of a join."""
    while True:
        session = yield from flow_store.open_flow(context, ref)
        if session is None:
            return None
        if key and (yield from flow_store.was_added(context, ref, session, key)):
            return session.head.info()
        yield from flow_store.read_nodes(context, ref, session, [join], inputs=True)
        if session.torn:
            continue
        first = session.head.total
        members = [replace(job, flow=FlowMember(ref.queue, ref.id, first + n)) for n, job in enumerate(jobs)]
        for n, job in enumerate(members):
            session.add(NewNode(first + n, job, (join,), uses=1))
        if not session.engine.add(join, members):
            return None
        session.inputs_changed(join)
        yield from flow_store.proceed(context, ref, session)
        if (yield from flow_store.commit(context, ref, session, context.replicas)):
            if session.unconfirmed:
                raise NotReplicated([job.id for job in members], session.unconfirmed)
            return (yield from _info(context, ref))


def get_flows(context: Context, refs: Sequence[Ref]) -> CallPlan[list[FlowInfo | None]]:
    """Read flows."""
    calls = []
    for ref in refs:
        key = flow_store.flow_key(context, ref)
        calls.append(command(key, "HMGET", key, "head", "q"))
    found = raise_errors((yield calls)) if calls else []
    return [None if head is None else read_head(head, counted).info() for head, counted in found]


def flow_nodes(
    context: Context, ref: Ref, indexes: Sequence[int], results: bool
) -> CallPlan[list[FlowNode | None]]:
    """Read nodes of a flow."""
    if not indexes:
        return []
    key = flow_store.flow_key(context, ref)
    kinds = b"nir" if results else b"ni"
    (found,) = raise_errors((yield [command(key, "HMGET", key, *node_fields(indexes, kinds))]))
    values = found[2::3] if results else [None] * len(indexes)
    rows = zip(indexes, found[0 :: len(kinds)], found[1 :: len(kinds)], values, strict=True)
    return [shown_node(*row) for row in rows]


def list_flows(context: Context, after: str | None, limit: int) -> CallPlan[FlowPage]:
    """List the flows of all queues, newest first; reads no flow that is not on the page."""
    before = None if after is None else flow_cursor(after)
    queues = yield from known_flow_queues(context)
    rank = (yield from _rank_of(context, before)) if before is not None and before[1] in queues else None
    calls = [_newest(context, queue, before, rank, limit + 1) for queue in queues]
    answers = yield from call_each(context, calls)
    places = sorted(
        (
            (int(float(at)), queue, id.decode())
            for queue, found in zip(queues, answers, strict=True)
            if found is not MISSING
            for id, at in zip(found[0::2], found[1::2], strict=True)
        ),
        reverse=True,
    )
    if before is not None:
        places = [place for place in places if place < before]
    infos = yield from get_flows(context, [Ref(queue, id) for _, queue, id in places[:limit]])
    return FlowPage.of([info for info in infos if info is not None], places, limit)


def _rank_of(context: Context, place: FlowPlace) -> CallPlan[int | None]:
    """The rank of a flow among those of its queue; None if it is not there any more."""
    (rank,) = yield from call_each(context, [context.on_key(place[1], b":flows", "ZREVRANK", place[2])])
    return None if rank is None or rank is MISSING else int(rank)


def _newest(
    context: Context, queue: str, before: FlowPlace | None, rank: int | None, most: int
) -> tuple[str, Call]:
    """Read the ids and times of the flows of a queue that come after a place in the list."""
    if before is not None and queue == before[1] and rank is not None:
        return context.on_key(queue, b":flows", "ZREVRANGE", rank + 1, rank + most, "WITHSCORES")
    highest: str | int = "+inf"
    if before is not None:  # those of the same time come after it if their queue does
        highest = before[0] if queue <= before[1] else f"({before[0]}"
        most += FLOW_STEP if queue == before[1] else 0  # of the same time, some may come before it
    by_time = ("ZREVRANGEBYSCORE", highest, "-inf", "WITHSCORES", "LIMIT", 0, most)
    return context.on_key(queue, b":flows", *by_time)


def change_flow(
    context: Context, ref: Ref, change: FlowChange, node: int | None = None
) -> CallPlan[FlowInfo | None]:
    """Cancel or retry a flow, or run it again from a node."""
    while True:
        session = yield from flow_store.open_flow(context, ref)
        if session is None:
            return None
        if change is FlowChange.CANCEL:
            session.engine.cancel(0)
        elif node is None:
            session.engine.retry(0)
        else:
            yield from flow_store.read_nodes(context, ref, session, [node])
            if session.torn:
                continue
            yield from flow_store.note_missing_jobs(context, session, [node])
            session.engine.rerun(node, 0)
        yield from flow_store.proceed(context, ref, session)
        if (yield from flow_store.commit(context, ref, session)):
            break
    yield from _count_ends(context, [ref.queue, *session.queues])
    return (yield from _info(context, ref))


@skips_corrupt_queues
def advance_flows(context: Context, limit: int) -> CallPlan[int]:
    """Continue what is left over."""
    queues = yield from known_flow_queues(context)
    if not queues:
        return 0
    done = yield from _count_ends(context, queues)
    now = int((yield from now_of(context)))
    due = ("ZRANGEBYSCORE", "-inf", now, "LIMIT", 0, _FLOWS)
    calls = [context.on_key(queue, b":flows/look", *due) for queue in queues]
    answers = yield from call_each(context, calls)
    for queue, ids in zip(queues, answers, strict=True):
        for id in () if ids is MISSING else ids:
            advanced = yield from run_for_queue(
                context, queue, _advance(context, Ref(queue, id.decode()), limit)
            )
            done += 0 if advanced is MISSING else advanced
    if done:
        done += yield from _count_ends(context, queues)
    return done


def _advance(context: Context, ref: Ref, limit: int) -> CallPlan[int]:
    session = yield from flow_store.open_flow(context, ref)
    if session is not None and session.parent_ended is not None:
        yield from _see_to_parent(context, session)
    elif session is None or not session.head.unfinished:
        if session is None or (session.look_at is not None and session.look_at <= session.now):
            yield from flow_store.remove(context, ref, session)
        return 1
    done = yield from flow_store.proceed(context, ref, session, limit)
    if not session.head.busy:
        done += yield from flow_store.release(context, ref, session, limit)
    # if the flow was changed meanwhile, the next call continues
    yield from flow_store.commit(context, ref, session)
    return max(1, done)


def _see_to_parent(context: Context, session: RedisFlowSession) -> CallPlan[None]:
    """Cancel a flow if the job that waits for it has ended without it."""
    session.parent_seen, spec = True, session.head.spec
    (job,) = yield from get(context, [Ref(spec.queue, spec.wakes)])
    gone = State.COMPLETED if session.parent_ended == b"c" else None
    state = gone if job is None else job.state
    if is_abandoned(session.head, state):
        session.engine.abandon(state, 0)


def _count_ends(context: Context, queues: Sequence[str]) -> CallPlan[int]:
    """Count the ends that other verbs have noted in these queues; return their number."""
    cursors: dict[str, bytes | int] = dict.fromkeys(queues, 0)
    entries: list[tuple[str, bytes]] = []
    while cursors:
        calls = [
            context.on_key(name, b":ends", "HSCAN", cursor, "COUNT", _ENDS)
            for name, cursor in cursors.items()
        ]
        names, cursors = list(cursors), {}
        for name, answer in zip(names, (yield from call_each(context, calls)), strict=True):
            if answer is MISSING:
                continue
            entries += [(name, stamp) for stamp in answer[1][0::2]]
            if not answer[1] and int(answer[0]):  # a scan may find nothing before its end
                cursors[name] = answer[0]
    return (yield from flow_store.deliver_ends(context, entries)) if entries else 0


def _info(context: Context, ref: Ref) -> CallPlan[FlowInfo | None]:
    (info,) = yield from get_flows(context, [ref])
    return info
