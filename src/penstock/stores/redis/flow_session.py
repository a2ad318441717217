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

from penstock.core.flow import CLOSED, FlowNode, FlowState, NewNode, NodeState, When
from penstock.core.flow_engine import FlowEngine, LiveFlow, LiveNode, Sweep
from penstock.core.job import NewJob, Ref
from penstock.stores.redis.keys import id_of, packed

__all__ = ["FlowChangeSet", "node_fields", "read_head", "shown_node"]

_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(LiveFlow).decode
_decode_indexes = msgspec.msgpack.Decoder(tuple[int, ...]).decode
_decode_job = msgspec.msgpack.Decoder(NewJob).decode

#: State, whether swept, pending, failures, the only successor, and the number of the last entry of `ends`
#: that was counted; queue.lua reads and changes them. Then stored id and queue of the job, each after its
#: size, and `_NodeFacts`.
_NODE = struct.Struct("<BBiiId")
#: The bytes of a node that scripts may change: all up to `failures`.
_CHANGING = 10
#: In place of an only successor: there are several.
_SEVERAL, _NO_ONE = 2**32 - 1, 2**32 - 2
_STATES = tuple(NodeState)
_NUMBERS = {state: number for number, state in enumerate(_STATES)}


class _NodeFacts(msgspec.Struct, array_like=True):
    """What never changes of a node. `next`: its successors, unless there is one."""

    when: When
    next: tuple[int, ...]
    task: str


_decode_facts = msgspec.msgpack.Decoder(_NodeFacts).decode


class _StoredNode(NamedTuple):
    """A node without its job, inputs and result."""

    node: LiveNode
    stamp: int


def _node_of(index: int, text: bytes) -> _StoredNode:
    state, swept, pending, failures, successor, stamp = _NODE.unpack_from(text)
    at = _NODE.size
    id = text[at + 1 : at + 1 + text[at]]
    at += 1 + len(id)
    queue = text[at + 1 : at + 1 + text[at]]
    fixed = _decode_facts(memoryview(text)[at + 1 + len(queue) :])
    node = LiveNode(
        index,
        _STATES[state],
        pending,
        failures,
        fixed.when,
        fixed.next if successor >= _NO_ONE else (successor,),
        (),
        Ref(queue.decode(), id_of(id)) if id else None,
        fixed.task,
        None,
        None,
        bool(swept),
    )
    return _StoredNode(node, int(stamp))


def _text_of(node: LiveNode, stamp: int) -> bytes:
    ref, following = node.ref, node.next
    id, queue = (b"", b"") if ref is None else (packed(ref.id), ref.queue.encode())
    several = _SEVERAL if following else _NO_ONE
    successor, rest = (following[0], ()) if len(following) == 1 else (several, following)
    head = _NODE.pack(_NUMBERS[node.state], node.swept, node.pending, node.failures, successor, stamp)
    of = bytes((len(id),)) + id + bytes((len(queue),)) + queue
    return head + of + _encode(_NodeFacts(node.when, rest, node.task))


def read_head(text: bytes, uncounted: bytes | None) -> LiveFlow:
    """Decode a flow, and add the ends that scripts have counted since it was stored."""
    head = _decode_head(text)
    n = int(uncounted or 0)
    if n:
        head.counts[NodeState.ACTIVE] = head.counts.get(NodeState.ACTIVE, 0) - n
        head.counts[NodeState.COMPLETED] = head.counts.get(NodeState.COMPLETED, 0) + n
    return head


class FlowChangeSet:
    """A flow, and its nodes as far as they were read; the host of its engine."""

    def __init__(self, head: LiveFlow, version: bytes, uncounted: int, now: int) -> None:
        self.head = head
        self.version = version
        #: The ends that scripts had counted, and that are counted in `head` now.
        self.uncounted = uncounted
        self.now = now
        self.engine = FlowEngine(head, self)
        self.jobs: list[NewJob] = []
        self.cancels: list[tuple[Ref, str]] = []
        self.retries: list[Ref] = []
        self.missing: set[Ref] = set()  # jobs that do not exist
        self._nodes: dict[int, LiveNode | None] = {}  # None: it does not exist
        self._states: dict[int, NodeState] = {}  # as stored
        self._firsts: dict[int, bytes] = {}  # the changing bytes of each, as stored
        self._stamps: dict[int, int] = {}
        self._changed: set[int] = set()
        self._started: set[int] = set()  # with a job that is stored no longer
        self._results: dict[int, bytes | None] = {}
        self._inputs: set[int] = set()
        self._new: set[int] = set()

    # ── the host of the engine ───────────────────────────────────────────────────────────────────

    def loaded(self, indexes: Iterable[int]) -> bool:
        return all(index in self._nodes for index in indexes)

    def node(self, index: int) -> LiveNode | None:
        return self._nodes.get(index)

    def touch(self, node: LiveNode) -> None:
        self._changed.add(node.index)
        if node.state is not self._states.get(node.index, NodeState.WAITING):
            self._results[node.index] = node.result

    def enqueue(self, job: NewJob) -> bool:
        assert job.flow is not None
        self._started.add(job.flow.node)
        self.jobs.append(job)
        return True

    def cancel(self, ref: Ref, reason: str) -> None:
        self.cancels.append((ref, reason))

    def retry(self, ref: Ref) -> bool:
        if ref in self.missing:
            return False
        self.retries.append(ref)
        return True

    @property
    def queues(self) -> list[str]:
        """The queues of the jobs that were cancelled."""
        return list(dict.fromkeys(ref.queue for ref, _ in self.cancels))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def unread(self, indexes: Iterable[int]) -> list[int]:
        """Those of these nodes that were not read."""
        return [index for index in dict.fromkeys(indexes) if index not in self._nodes]

    def read(self, index: int, text: bytes | None, job: bytes | None, inputs: bytes | None = None) -> None:
        """Add a node that was read."""
        if text is None:
            self._nodes[index] = None
            return
        node, stamp = _node_of(index, text)
        node.inputs = () if inputs is None else _decode_indexes(inputs)
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
        if new.job is None:
            self._inputs.add(new.index)

    def inputs_changed(self, index: int) -> None:
        """Note that the inputs of a join have changed."""
        self._inputs.add(index)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    @property
    def changed(self) -> bool:
        """Whether there is something to store."""
        return bool(self._changed)

    @property
    def scripts_count(self) -> bool:
        """Whether scripts may count the usual ends by themselves: none has another consequence now."""
        head = self.head
        calm = head.sweep in (Sweep.NONE, Sweep.START) and not head.work
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
        if self.head.busy:
            return 0
        over = self.head.state in CLOSED or self.head.state is FlowState.BUILDING
        return self.head.over_at if over else None

    def fields(self) -> tuple[list[bytes], list[bytes]]:
        """The fields to set, with their values, and the fields to remove."""
        sets, dels = [b"head", _encode(self.head)], []
        for index in sorted(self._changed):
            node = self._node(index)
            sets += (b"n%d" % index, _text_of(node, self._stamps[index]))
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


def _job_of(text: bytes) -> NewJob | None:
    """The job of a waiting node; None if it cannot be read: its node then ends instead of starting."""
    try:
        return _decode_job(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def node_fields(indexes: Iterable[int], kinds: bytes) -> list[bytes]:
    """The names of the fields of these nodes, of each of these kinds."""
    return [kind.to_bytes() + b"%d" % index for index in indexes for kind in kinds]


def shown_node(index: int, text: bytes | None, inputs: bytes | None, result: bytes | None) -> FlowNode | None:
    """A node as operators and clients see it."""
    if text is None:
        return None
    one, _ = _node_of(index, text)
    of = () if inputs is None else _decode_indexes(inputs)
    return FlowNode(index, one.state, one.ref, one.task, one.when, one.next, of, result)
