"""The verbs of flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import QueueClosed
from penstock.core.flow import FlowInfo, FlowNode, FlowState, NewFlow, NewNode
from penstock.core.flow_engine import is_abandoned, joins_on, new_flow
from penstock.core.job import NewJob, Ref, State
from penstock.core.relations import FlowMember
from penstock.stores.contract import FLOW_STEP, FlowChange, FlowPage, no_room
from penstock.stores.cursors import flow_cursor, place_of
from penstock.stores.sql.rows import decode_head, encode_head, numbers
from penstock.stores.sql.statements import SQL
from penstock.stores.sql.transaction_context import NEEDS_WRITE, TransactionContext
from penstock.stores.sql.verbs.flow_session import (
    SqlFlowSession,
    count_ends,
    node_row,
    shown_node,
)
from penstock.stores.sql.verbs.limits import refusal

_FLOW = SQL["flows.flow"]
_NEW_FLOW = SQL["flows.new_flow"]
_NEW_NODE = SQL["flows.new_node"]
_DROP_NODES = SQL["flows.drop_nodes"]
_SHOWN = SQL["flows.shown"]
_PAGE = SQL["flows.page"]
_ANY_BUSY = SQL["flows.any_busy"]
_BUSY = SQL["flows.busy"]
_OVER = SQL["flows.over"]
_DROP_SOME_NODES = SQL["flows.drop_some_nodes"]
_HIDE_FLOW = SQL["flows.hide_flow"]
_DROP_FLOW = SQL["flows.drop_flow"]
_SET_PARENT = SQL["flows.set_parent"]
_ADD_KEY = SQL["flows.add_key"]
_DROP_KEY = SQL["flows.drop_key"]
_DROP_KEYS = SQL["flows.drop_keys"]

_LAST = (2**63 - 1, "", "")


def put_flow(tx: TransactionContext, spec: NewFlow, nodes: Sequence[NewNode], start: bool) -> FlowInfo | None:
    session = _session(tx, spec.ref)
    if session is None:
        head = new_flow(spec, tx.now)
        if not joins_on(head, nodes):
            return None
        _admit(tx, spec)
        row = (tx.namespace, spec.queue, spec.id, tx.now, head.over_at, encode_head(head))
        tx.execute(_NEW_FLOW, row)
        session = _session(tx, spec.ref)
        assert session is not None
    head = session.head
    if head.spec.key != spec.key or not joins_on(head, nodes):
        return None
    if head.state is FlowState.BUILDING:
        new = [node_row(session.fid, node) for node in nodes if node.index >= head.total]
        tx.execute_many(_NEW_NODE, new)
        head.stored(len(new))
        if start:
            session.engine.start(FLOW_STEP)
    return _after(tx, session)


def _admit(tx: TransactionContext, flow: NewFlow) -> None:
    """Raise QueueClosed or QueueFull if a queue does not take the jobs with which a new flow starts."""
    for name, count in flow.starts:
        queue = tx.some_queue(name)
        if queue.closed:
            raise QueueClosed(name)
        full = refusal(tx, queue, flow.id, count)
        if full is not None:
            assert full.size is not None
            assert full.retry_after is not None
            raise no_room(name, count, full.size, full.retry_after, waits=full.waits)


def add_to_flow(
    tx: TransactionContext, ref: Ref, join: int, jobs: Sequence[NewJob], key: str = ""
) -> FlowInfo | None:
    session = _session(tx, ref)
    if session is None:
        return None
    if key and not tx.execute(_ADD_KEY, (session.fid, key)).rowcount:
        return session.head.info()
    first = session.head.total
    members = [replace(job, flow=FlowMember(ref.queue, ref.id, first + n)) for n, job in enumerate(jobs)]
    session.load_inputs(join)
    rows = [node_row(session.fid, NewNode(first + n, job, (join,), uses=1)) for n, job in enumerate(members)]
    tx.execute_many(_NEW_NODE, rows)
    if not session.engine.add(join, members):
        tx.execute(_DROP_NODES, (session.fid, first))
        tx.execute(_DROP_KEY, (session.fid, key))
        return None
    session.save_inputs(join)
    return _after(tx, session)


def get_flows(tx: TransactionContext, refs: Sequence[Ref]) -> list[FlowInfo | None]:
    rows = [tx.execute(_FLOW, (tx.namespace, ref.queue, ref.id)).fetchone() for ref in refs]
    return [None if row is None else decode_head(row[1]).info() for row in rows]


def flow_nodes(
    tx: TransactionContext, ref: Ref, indexes: Sequence[int], results: bool
) -> list[FlowNode | None]:
    row = tx.execute(_FLOW, (tx.namespace, ref.queue, ref.id)).fetchone()
    if row is None:
        return [None] * len(indexes)
    found = {one[0]: shown_node(*one) for one in tx.execute(_SHOWN, (row[0], numbers(indexes), results))}
    return [found.get(index) for index in indexes]


def list_flows(tx: TransactionContext, after: str | None, limit: int) -> FlowPage:
    before = _LAST if after is None else flow_cursor(after)
    rows = tx.execute(_PAGE, (tx.namespace, *before, limit + 1)).fetchall()
    infos = [decode_head(head).info() for (head,) in rows]
    return FlowPage.of(infos[:limit], [place_of(info) for info in infos], limit)


def change_flow(
    tx: TransactionContext, ref: Ref, change: FlowChange, node: int | None = None
) -> FlowInfo | None:
    session = _session(tx, ref)
    if session is None:
        return None
    if change is FlowChange.CANCEL:
        session.engine.cancel(FLOW_STEP)
    elif node is None:
        session.engine.retry(FLOW_STEP)
    else:
        session.engine.rerun(node, FLOW_STEP)
    return _after(tx, session)


def probe_advance(tx: TransactionContext, limit: int) -> Any:
    """Answer 0 if nothing is left over, so that an idle store takes no write lock."""
    (busy,) = tx.execute(_ANY_BUSY, (tx.namespace, tx.now)).fetchone()
    return NEEDS_WRITE if busy else 0


def advance_flows(tx: TransactionContext, limit: int) -> int:
    done = 0
    for fid, head, parent in tx.execute(_BUSY, (tx.namespace, 10)).fetchall():
        session = SqlFlowSession(tx, fid, decode_head(head))
        if session.head.spec.wakes:
            done += _see_to_parent(tx, session, limit, completed=parent == -1)
        done += session.engine.advance(limit)
        if session.head.releases and not session.head.busy:
            done += session.engine.release(limit)
        session.save()
        count_ends(tx)
    for fid, head in tx.execute(_OVER, (tx.namespace, tx.now)).fetchall():
        gone = tx.execute(_DROP_SOME_NODES, (fid, limit)).rowcount
        flow = decode_head(head)
        if gone < limit:
            tx.execute(_DROP_KEYS, (fid,))
            tx.execute(_DROP_FLOW, (fid,))
        elif flow.total:
            flow.total = 0  # see flow_session.py: the rest of its nodes is not counted
            tx.execute(_HIDE_FLOW, (fid, encode_head(flow)))
        done += gone + 1
    return done


def _see_to_parent(tx: TransactionContext, session: SqlFlowSession, limit: int, *, completed: bool) -> int:
    """Cancel a flow if its job has ended without it. `completed`: so that job had, if it is gone now."""
    seq, state = session.parent()
    state = State.COMPLETED if seq is None and completed else state
    tx.execute(_SET_PARENT, (session.fid, seq))
    if not is_abandoned(session.head, state):
        return 0
    session.engine.abandon(state, limit)
    return 1


def _session(tx: TransactionContext, ref: Ref) -> SqlFlowSession | None:
    row = tx.execute(_FLOW, (tx.namespace, ref.queue, ref.id)).fetchone()
    return None if row is None else SqlFlowSession(tx, row[0], decode_head(row[1]))


def _after(tx: TransactionContext, session: SqlFlowSession) -> FlowInfo:
    """The flow after the verb, and after the ends that the verb has caused."""
    session.save()
    if tx.flow_ends:
        count_ends(tx)
        (info,) = get_flows(tx, [session.head.spec.ref])
        assert info is not None
        return info
    return session.head.info()
