"""One flow on Redis while a verb changes it: what was read, what has changed, and what is to be enqueued.

The rules are those of `core/flow_engine.py`. A change is computed here and stored by `flow_commit.lua`, which
refuses it if the flow has changed since it was read; then the verb reads the flow again. The usual end of a
node is counted by the script that ends its job (queue.lua), which changes the node, its successor and `q`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.core.flow import CLOSED, OPEN, USED, FlowNode, FlowState, NewNode, NodeState, When
from penstock.core.flow_engine import FlowEngine, LiveFlow, LiveNode, Sweep
from penstock.core.job import NewJob, Ref
from penstock.stores.redis.layout import id_of, packed
from penstock.stores.redis.wire.calls import ServerRun

_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(LiveFlow).decode
_decode_indexes = msgspec.msgpack.Decoder(tuple[int, ...]).decode
_decode_job = msgspec.msgpack.Decoder(NewJob).decode


#: State, whether swept, pending, failures, the only successor (if scripts may count the end of the node),
#: and the number of the last entry of `ends` that was counted; queue.lua reads and changes them. Then stored
#: id and queue of the job, each after its size, and `_NodeFacts`.
_NODE = struct.Struct("<BBiiId")
#: The bytes of a node that scripts may change: all up to `failures`.
_CHANGING = 10
#: In place of an only successor: scripts do not count the end; `_NodeFacts` has the successors.
_NO_ONE = 2**32 - 1
_STATES = tuple(NodeState)
_NUMBERS = {state: number for number, state in enumerate(_STATES)}


class _NodeFacts(msgspec.Struct, array_like=True):
    """What scripts do not read. `next`: the successors of the node, unless `_NODE` has the only one."""

    when: When
    next: tuple[int, ...]
    task: str
    again: bool = False
    takes: bool = False
    uses: int = -1
    external: bool = False


_decode_facts = msgspec.msgpack.Decoder(_NodeFacts).decode


class _StoredNode(NamedTuple):
    """A node without its job, inputs and result. `stamp`: the number of the last end that was counted."""

    node: LiveNode
    stamp: int


def _job_and_facts(text: bytes) -> tuple[Ref | None, _NodeFacts]:
    at = _NODE.size
    id_from = at + 1
    at = id_from + text[at]
    id, queue_from = text[id_from:at], at + 1
    at = queue_from + text[at]
    queue = text[queue_from:at]
    return Ref(queue.decode(), id_of(id)) if queue else None, _decode_facts(text[at:])


def _node_of(index: int, text: bytes) -> _StoredNode:
    state, swept, pending, failures, successor, stamp = _NODE.unpack_from(text)
    ref, facts = _job_and_facts(text)
    node = LiveNode(
        index,
        _STATES[state],
        pending,
        failures,
        facts.when,
        facts.next if successor == _NO_ONE else (successor,),
        ref=ref,
        task=facts.task,
        swept=bool(swept),
        again=facts.again,
        takes=facts.takes,
        uses=facts.uses,
        external=facts.external,
    )
    return _StoredNode(node, int(stamp))


def _text_of(node: LiveNode, stamp: int, *, usual: bool) -> bytes:
    """Encode a node. `usual`: scripts may count its end."""
    ref = node.ref
    id, queue = (b"", b"") if ref is None else (packed(ref.id), ref.queue.encode())
    successor, rest = (node.next[0], ()) if usual else (_NO_ONE, node.next)
    head = _NODE.pack(_NUMBERS[node.state], node.swept, node.pending, node.failures, successor, stamp)
    job = bytes((len(id),)) + id + bytes((len(queue),)) + queue
    facts = _NodeFacts(node.when, rest, node.task, node.again, node.takes, node.uses, node.external)
    return head + job + _encode(facts)


def read_head(text: bytes, uncounted: bytes | None) -> LiveFlow:
    """Decode a flow, and add the ends that scripts have counted since it was stored."""
    head = _decode_head(text)
    if n := int(uncounted or 0):
        head.counts[NodeState.ACTIVE] = head.counts.get(NodeState.ACTIVE, 0) - n
        head.counts[NodeState.COMPLETED] = head.counts.get(NodeState.COMPLETED, 0) + n
    return head


class RedisFlowSession:
    """A flow, and its nodes as far as they were read; the host of its engine."""

    def __init__(
        self, head: LiveFlow, version: bytes, uncounted: int, now: int, run: ServerRun | None = None
    ) -> None:
        self.head = head
        self.run = run  # that of the server that the flow was read from
        self._was_over = head.over
        self.version = version
        self.torn = False  # a node was read that another change has stored since
        #: The ends that scripts had counted, and that are counted in `head` now.
        self.uncounted = uncounted
        self.now = now
        self.engine = FlowEngine(head, self)
        self.jobs: list[NewJob] = []
        self.cancels: list[tuple[Ref, str]] = []
        self.retries: list[Ref] = []  # unless they have completed
        self.reruns: list[Ref] = []
        self.missing: set[Ref] = set()  # jobs that do not exist
        self.counted: list[tuple[str, int]] = []  # entries of `ends` (queue, number) that the change counts
        self.removed: set[str] = set()  # the queues whose entries were removed with the change
        self.unconfirmed = ""  # why too few replicas have the change, once it is stored
        self.wakes: Ref | None = None  # a job to wake
        self.starts = () if version else head.spec.starts  # of a new flow: its queues are asked for room
        self.parent_ended: bytes | None = None  # the job that waits for it has ended; nobody has seen to it
        self.parent_seen = False  # somebody sees to it now
        self._was_open = bool(version) and head.state not in CLOSED
        self.added = b""  # the field that notes the key of a call which adds members
        self.ended: dict[Ref, NodeState] = {}  # jobs that others have enqueued, and that have ended
        self._nodes: dict[int, LiveNode | None] = {}  # None: it does not exist
        self._states: dict[int, NodeState] = {}  # as stored
        self._firsts: dict[int, bytes] = {}  # the changing bytes of each, as stored
        self._stamps: dict[int, int] = {}
        self._changed: set[int] = set()
        self._started: set[int] = set()  # with a job that is stored no longer
        self._results: dict[int, bytes | None] = {}
        self._opened: set[int] = set()  # runs, or waits, or did so since it was read
        self._inputs: set[int] = set()
        self._new: set[int] = set()

    # ── the host of the engine ───────────────────────────────────────────────────────────────────

    def loaded(self, indexes: Iterable[int]) -> bool:
        return all(index in self._nodes for index in indexes)

    def node(self, index: int) -> LiveNode | None:
        return self._nodes.get(index)

    def touch(self, node: LiveNode) -> None:
        self._changed.add(node.index)
        moved = node.state is not self._states.get(node.index, NodeState.WAITING)
        if node.state in OPEN:  # one that runs again keeps its result until it ends
            self._results.pop(node.index, None)
            self._opened.add(node.index)
        elif moved or node.index in self._opened:  # it may end as before
            self._results[node.index] = node.result

    def inputs(self, index: int) -> tuple[int, ...]:
        node = self._nodes[index]
        return () if node is None else node.inputs

    def released(self, node: LiveNode) -> None:
        self._changed.add(node.index)
        if node.uses == 0 and node.ref is not None:
            self._results[node.index] = USED

    def enqueue(self, job: NewJob) -> bool:
        assert job.flow is not None
        self._started.add(job.flow.node)
        self.jobs.append(job)
        return True

    def adopt(self, node: LiveNode) -> NodeState | None:
        assert node.ref is not None
        return self.ended.get(node.ref)

    def wake(self, ref: Ref) -> None:
        self.wakes = ref

    def cancel(self, ref: Ref, reason: str) -> None:
        self.cancels.append((ref, reason))

    def retry(self, ref: Ref) -> bool:
        if ref in self.missing:
            return False
        self.retries.append(ref)
        return True

    def rerun(self, ref: Ref) -> bool:
        if ref in self.missing:
            return False
        self.reruns.append(ref)
        return True

    @property
    def queues_of_enqueued(self) -> set[str]:
        """The queues of new nodes whose jobs are enqueued already: they may end by any verb from now on."""
        nodes = [self._node(index) for index in self._new]
        return {node.ref.queue for node in nodes if node.job is None and node.ref is not None}

    @property
    def queues(self) -> list[str]:
        """The queues of the jobs that were cancelled."""
        return list(dict.fromkeys(ref.queue for ref, _ in self.cancels))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def unread(self, indexes: Iterable[int]) -> list[int]:
        """Those of these nodes that were not read."""
        return [index for index in dict.fromkeys(indexes) if index not in self._nodes]

    def has_again(self, indexes: Iterable[int]) -> bool:
        """Whether the jobs of some of these nodes are retried when they start."""
        nodes = [self._nodes[index] for index in indexes]
        return any(node is not None and node.again for node in nodes)

    def externals(self, indexes: Iterable[int]) -> list[Ref]:
        """The jobs of these nodes that others have enqueued."""
        nodes = [self._nodes.get(index) for index in indexes]
        return [node.ref for node in nodes if node is not None and node.external and node.ref is not None]

    def read(self, index: int, text: bytes | None, job: bytes | None, inputs: bytes | None = None) -> None:
        """Add a node that was read."""
        if text is None:
            self._nodes[index] = None
            return
        node, stamp = _node_of(index, text)
        node.inputs = indexes_of(inputs)
        node.job = None if job is None else _job_of(job)
        self._stamps[index], self._states[index] = stamp, node.state
        self._firsts[index] = text[:_CHANGING]
        self._nodes[index] = node

    def is_news(self, index: int, job: Ref, stamp: int) -> bool:
        """Whether this is the job of the node, and no later end was counted; notes that this one is."""
        node = self._nodes.get(index)
        if node is None or node.ref != job or stamp <= self._stamps[index]:
            return False
        self._stamps[index] = stamp
        self._changed.add(index)
        return True

    def add(self, new: NewNode) -> None:
        """Add a new node."""
        self._nodes[new.index] = LiveNode.of(new)
        self._stamps[new.index] = 0
        self._changed.add(new.index)
        self._new.add(new.index)
        if new.job is None or new.inputs:
            self._inputs.add(new.index)

    def read_inputs(self, index: int, inputs: bytes | None) -> None:
        """Add the inputs of a node that was read without them."""
        node = self._nodes[index]
        if node is not None:
            node.inputs = indexes_of(inputs)

    def inputs_changed(self, index: int) -> None:
        """Note that the inputs of a join have changed."""
        self._inputs.add(index)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    @property
    def scripts_count(self) -> bool:
        """Whether scripts may count the usual ends by themselves: none has another consequence now."""
        head = self.head
        calm = head.sweep in (Sweep.NONE, Sweep.START) and not head.work and not head.releases
        return calm and head.state is FlowState.RUNNING

    @property
    def needs_all_ends(self) -> bool:
        """Whether an end that a script counts now could be the last: a flow with waiting nodes goes on."""
        return not self.head.counts.get(NodeState.WAITING)

    def checks(self) -> list[bytes]:
        """The fields of nodes to change, and the bytes that they must have."""
        known = [index for index in self._changed if index in self._firsts]
        return [part for index in known for part in (b"n%d" % index, self._firsts[index])]

    @property
    def look_at(self) -> int | None:
        """When `advance_flows` has something to do."""
        if self.head.unfinished:
            return 0
        over = self.head.state in CLOSED or self.head.state is FlowState.BUILDING
        return self.head.over_at if over else None

    @property
    def news_for_parent(self) -> str:
        """What the job that waits for the flow has to know: the flow is "new", or "open" or "closed" now."""
        closed = self.head.state in CLOSED
        if not self.head.spec.wakes or self._was_open is not closed:
            return ""
        return "closed" if closed else "open" if self.version else "new"

    @property
    def is_news_for_waiters(self) -> bool:
        """Whether those that wait for the flow have nothing to wait for any longer."""
        return self.head.over and not self._was_over

    def fields(self) -> tuple[list[bytes], list[bytes]]:
        """The fields to set, with their values, and the fields to remove."""
        sets, dels = [b"head", _encode(self.head)], []
        if self.parent_seen:
            dels.append(b"p")
        if self.added:
            sets += (self.added, b"1")
        if self.head.over:
            sets += (b"o", b"1")
        elif self._was_over:
            dels.append(b"o")
        for index in sorted(self._changed):
            node = self._node(index)
            sets += (b"n%d" % index, _text_of(node, self._stamps[index], usual=self._usual(node)))
            if node.job is not None and index in self._new:
                sets += (b"j%d" % index, _encode(node.job))
            elif index in self._started:
                dels.append(b"j%d" % index)
        for index in self._inputs:
            sets += (b"i%d" % index, _encode(self._node(index).inputs))
        for index, result in self._results.items():
            if result is None:
                dels.append(b"r%d" % index)
            else:
                sets += (b"r%d" % index, result)
        return sets, dels

    def _node(self, index: int) -> LiveNode:
        node = self._nodes[index]
        assert node is not None
        return node

    def _usual(self, node: LiveNode) -> bool:
        """Whether the end of a node has no other consequence than one pending less for its successor."""
        plain = not (node.again or node.takes or node.external) and node.uses != 0
        return plain and len(node.next) == 1 and node.index != self.head.spec.result


def _job_of(text: bytes) -> NewJob | None:
    """The job of a waiting node; None if it cannot be read: its node then ends instead of starting."""
    try:
        return _decode_job(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def node_fields(indexes: Iterable[int], kinds: bytes) -> list[bytes]:
    """The names of the fields of these nodes, of each of these kinds."""
    return [kind.to_bytes() + b"%d" % index for index in indexes for kind in kinds]


def indexes_of(inputs: bytes | None) -> tuple[int, ...]:
    """The stored inputs of a node."""
    return () if inputs is None else _decode_indexes(inputs)


def shown_node(index: int, text: bytes | None, inputs: bytes | None, result: bytes | None) -> FlowNode | None:
    """A node as operators and clients see it."""
    if text is None:
        return None
    state, _, _, _, successor, _ = _NODE.unpack_from(text)
    ref, facts = _job_and_facts(text)
    after = facts.next if successor == _NO_ONE else (successor,)
    of = () if inputs is None else _decode_indexes(inputs)
    return FlowNode(index, _STATES[state], ref, facts.task, facts.when, after, of, result, facts.uses)
