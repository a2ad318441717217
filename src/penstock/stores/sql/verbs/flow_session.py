"""One flow in a transaction: reads nodes when they are needed, and saves at the end what has changed.

Verbs that end jobs of nodes only note these ends; `count_ends` counts them in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

import msgspec

from penstock.core.flow import CLOSED, FlowNode, FlowState, NewNode, NodeState, When, outcome_of
from penstock.core.flow_engine import FlowEngine, LiveFlow, LiveNode, is_abandoned
from penstock.core.job import NewJob, Ref, State
from penstock.stores.contract import FLOW_STEP, EnqueueStatus, JobRetry, SetAside
from penstock.stores.sql.rows import Row, UnreadableRow, decode_head, encode_head, numbers, spec_blob, spec_of
from penstock.stores.sql.statements import SQL, STATES
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.verbs.changing import change_jobs
from penstock.stores.sql.verbs.producing import cancel, enqueue_one, get
from penstock.stores.sql.verbs.stepping import wake_job

_NODE = SQL["flows.node"]
_INPUTS = SQL["flows.inputs"]
_SET_INPUTS = SQL["flows.set_inputs"]
_SAVE_FLOW = SQL["flows.save_flow"]
_SAVE_COUNTS = SQL["flows.save_counts"]
_SAVE_NODE = SQL["flows.save_node"]
_SET_USES = SQL["flows.set_uses"]
_SET_PARENT = SQL["flows.set_parent"]
_STATE = SQL["steps.state"]
_NODES_OF = SQL["flows.nodes_of"]
_FLOW_OF = SQL["flows.flow_of"]
_OWN = SQL["flows.own"]

_KIND = itemgetter(0, 2)  # flow and outcome

#: Flags of a node.
_SWEPT, _AGAIN = 1, 2

#: Each state by its text, and the text of each: faster than the enum's own look-ups.
_STATES = {state.value: state for state in NodeState}
_TEXTS = {state: state.value for state in NodeState}
_encode = msgspec.msgpack.Encoder().encode
_decode_indexes = msgspec.msgpack.Decoder(tuple[int, ...]).decode


class _Fixed(msgspec.Struct, frozen=True, array_like=True):
    """What never changes of a node."""

    when: When
    next: tuple[int, ...]
    queue: str | None
    id: str
    task: str
    takes: bool = False
    external: bool = False

    @property
    def ref(self) -> Ref | None:
        return None if self.queue is None else Ref(self.queue, self.id)


_decode_fixed = msgspec.msgpack.Decoder(_Fixed).decode


class SqlFlowSession:
    """A flow, its nodes by number as far as they were read, and the engine of its rules."""

    def __init__(self, tx: TransactionContext, fid: int, head: LiveFlow) -> None:
        self.fid = fid
        self.head = head
        self._was_over = head.over
        self._is_new = not head.total
        self._was_open = not self._is_new and head.state not in CLOSED
        self._tx = tx
        self._nids: dict[int, int] = {}
        self._nodes: dict[int, LiveNode] = {}
        self._states: dict[int, NodeState] = {}  # as stored
        self._changed: dict[int, LiveNode] = {}
        self.engine = FlowEngine(head, self)

    @property
    def now(self) -> int:
        return self._tx.now

    def parent(self) -> tuple[int | None, State | None]:
        """The number and state of the job that waits for the flow, if there is one."""
        spec = self.head.spec
        row = self._tx.execute(_STATE, (self._tx.some_queue(spec.queue).qid, spec.wakes)).fetchone()
        return (None, None) if row is None else (row[0], STATES[row[1]])

    def _save_parent(self) -> None:
        """Note whether a job waits for the flow, after the flow was opened or closed."""
        seq, state = (None, None) if self.head.state in CLOSED else self.parent()
        if self._is_new and is_abandoned(self.head, state):
            seq = 0
        self._tx.execute(_SET_PARENT, (self.fid, seq))

    def node(self, index: int) -> LiveNode | None:
        node = self._nodes.get(index)
        if node is None:
            row = self._tx.execute(_NODE, (self.fid, index)).fetchone()
            if row is None:
                return None
            self.add_row(index, row)
            node = self._nodes[index]
        return node

    def add_row(self, index: int, row: Row) -> None:
        """Add a node that was read: the columns of `flows.node`."""
        if index in self._nodes:
            return
        nid, state, pending, failures, flags, fixed, job, uses = row
        facts = _decode_fixed(fixed)
        node = LiveNode(
            index,
            _STATES[state],
            pending,
            failures,
            facts.when,
            facts.next,
            (),
            facts.ref,
            facts.task,
            None if job is None else self._job_of(nid, facts, job),
            None,
            bool(flags & _SWEPT),
            bool(flags & _AGAIN),
            facts.takes,
            uses,
            facts.external,
        )
        self._nodes[index], self._nids[index] = node, nid
        self._states[index] = node.state

    def _job_of(self, nid: int, facts: _Fixed, job: bytes) -> NewJob | None:
        """The job of a waiting node; None if it cannot be read: its node then ends instead of starting."""
        try:
            return spec_of(nid, job)
        except UnreadableRow as error:
            self._tx.set_aside.append(
                SetAside("outbox entry", facts.queue or "", facts.id, error.causes[nid])
            )
            return None

    def loaded(self, indexes: Iterable[int]) -> bool:
        return True

    def touch(self, node: LiveNode) -> None:
        self._changed[node.index] = node

    def inputs(self, index: int) -> tuple[int, ...]:
        node = self.node(index)
        if node is None:
            return ()
        self.load_inputs(index)
        return node.inputs

    def released(self, node: LiveNode) -> None:
        self._tx.execute(_SET_USES, (self._nids[node.index], node.uses, node.ref is not None))

    # ── what the engine does with jobs ──

    def enqueue(self, job: NewJob) -> bool:
        assert job.flow is not None
        if enqueue_one(self._tx, job, follows=True).status is not EnqueueStatus.NEW:
            return False
        self._own(job.ref, self._nids[job.flow.node])
        return True

    def cancel(self, ref: Ref, reason: str) -> None:
        cancel(self._tx, [ref], reason)

    def retry(self, ref: Ref) -> bool:
        (job,) = get(self._tx, [ref])
        if job is not None and job.state is State.COMPLETED:  # by an act whose end is counted after this one
            return True
        return self.rerun(ref)

    def rerun(self, ref: Ref) -> bool:
        change_jobs(self._tx, [JobRetry(ref, expires_in=None)])
        (job,) = get(self._tx, [ref])
        return job is not None and not job.ended  # an unreadable job stays as it is

    def adopt(self, node: LiveNode) -> NodeState | None:
        assert node.ref is not None
        (job,) = get(self._tx, [node.ref])
        if job is None:
            return NodeState.GONE
        if job.ended:
            return outcome_of(job.state)
        self._own(node.ref, self._nids[node.index])
        return None

    def _own(self, ref: Ref, nid: int) -> None:
        """Make a job the job of a node: its end is an end of the node."""
        self._tx.execute(_OWN, (self._tx.some_queue(ref.queue).qid, ref.id, nid))

    def wake(self, ref: Ref) -> None:
        wake_job(self._tx, ref)

    # ── storing ──

    def load_inputs(self, index: int) -> None:
        """Read the inputs of a node, which usually nobody needs."""
        node = self.node(index)
        if node is not None:
            (inputs,) = self._tx.execute(_INPUTS, (self._nids[index],)).fetchone()
            node.inputs = () if inputs is None else _decode_indexes(inputs)

    def save_inputs(self, index: int) -> None:
        """Store the inputs of a join."""
        self._tx.execute(_SET_INPUTS, (self._nids[index], _encode(self._nodes[index].inputs)))

    def save(self) -> None:
        """Store what has changed."""
        moved: list[Row] = []
        for index, node in self._changed.items():
            flags = _SWEPT * node.swept + _AGAIN * node.again
            counts = (self._nids[index], node.pending, node.failures, flags)
            if node.state is self._states[index]:
                self._tx.execute(_SAVE_COUNTS, counts)
            else:
                job = None if node.job is None else spec_blob(node.job)
                moved.append((*counts, _TEXTS[node.state], job, node.result))
                self._states[index] = node.state
        self._tx.execute_many(_SAVE_NODE, moved)
        self._changed.clear()
        head = self.head
        if head.over and not self._was_over:
            self._tx.ended = True
        if head.spec.wakes and self._was_open is (head.state in CLOSED):
            self._save_parent()
        over = head.over_at if head.state in CLOSED or head.state is FlowState.BUILDING else None
        self._tx.execute(_SAVE_FLOW, (self.fid, head.unfinished, over, encode_head(head)))


# ── the ends of jobs ─────────────────────────────────────────────────────────────────────────────


def count_ends(tx: TransactionContext) -> None:
    """Count the ends that verbs of this transaction have noted, and those that follow from them."""
    while tx.flow_ends:
        ends, tx.flow_ends = tx.flow_ends, []
        sessions: dict[int, SqlFlowSession] = {}
        places = _load(tx, ends, sessions)
        found = [(*places[nid], outcome, result) for nid, outcome, result in ends if nid in places]
        for (fid, outcome), some in groupby(found, key=_KIND):
            engine = sessions[fid].engine
            if outcome is NodeState.COMPLETED:
                engine.completed([(index, result) for _, index, _, result in some], FLOW_STEP)
                continue
            for _, index, _, result in some:
                if outcome is None:
                    engine.reopened(index, FLOW_STEP)
                else:
                    engine.ended(index, outcome, result, FLOW_STEP)
        for session in sessions.values():
            session.save()


def _load(
    tx: TransactionContext,
    ends: list[tuple[int, NodeState | None, bytes | None]],
    sessions: dict[int, SqlFlowSession],
) -> dict[int, tuple[int, int]]:
    """Read the nodes of these ends into the sessions of their flows; return the flow and number of each."""
    places: dict[int, tuple[int, int]] = {}
    named = numbers(list(dict.fromkeys([nid for nid, _, _ in ends])))
    for fid, index, *columns in tx.execute(_NODES_OF, (named,)).fetchall():
        row, session = tuple(columns), sessions.get(fid)
        if session is None:
            _, head, _ = tx.execute(_FLOW_OF, (row[0],)).fetchone()
            flow = decode_head(head)
            if not flow.total:  # it is being removed
                continue
            session = sessions[fid] = SqlFlowSession(tx, fid, flow)
        session.add_row(index, row)
        places[row[0]] = fid, index
    return places


# ── nodes as rows and as values ──────────────────────────────────────────────────────────────────


def node_row(fid: int, node: NewNode) -> Row:
    """The parameters of `flows.new_node`."""
    job = node.job
    fixed = _Fixed(node.when, node.next, None, "", "")
    if job is not None:
        fixed = _Fixed(node.when, node.next, job.queue, job.id, job.task, bool(node.inputs))
    elif node.ref is not None:
        fixed = _Fixed(node.when, node.next, node.ref.queue, node.ref.id, "", external=True)
    inputs = _encode(node.inputs) if job is None or node.inputs else None
    blob = None if job is None else spec_blob(job)
    return fid, node.index, NodeState.WAITING.value, node.waits, _encode(fixed), blob, inputs, node.uses


def shown_node(
    index: int, state: str, fixed: bytes, inputs: bytes | None, result: bytes | None, uses: int
) -> FlowNode:
    """A node as operators and clients see it."""
    facts = _decode_fixed(fixed)
    of = () if inputs is None else _decode_indexes(inputs)
    return FlowNode(index, NodeState(state), facts.ref, facts.task, facts.when, facts.next, of, result, uses)
