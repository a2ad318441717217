"""The fast path of settle: completed jobs without dependents, settled together in a few statements."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock.core.flow import NodeState
from penstock.core.job import Lease, State
from penstock.stores.contract import Settlement, no_outcome
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import Row, numbers
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import COMPLETED, RUNNING
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.text_encoding import storable

__all__ = ["Completions", "completions_of"]

_REMOVE = SQL["settle.remove"]
_LEFT = SQL["settle.left"]
_KEEP = SQL["settle.keep"]

_COMPLETED = State.COMPLETED
#: The first parameters of `settle.keep`: one tuple per job.
_SEQ, _QID, _RESULT = 0, 1, 6
#: The unique_phases of the job of a node without a unique key.
_MEMBER = 0
_decode_nodes = msgspec.json.Decoder(list[tuple[int, int | None]]).decode


class Completions:
    """Completed jobs that concern nobody else, or nobody but their flow: only a result has to be stored."""

    __slots__ = ("gone", "kept", "members", "queues", "results", "with_dependents")

    def __init__(self) -> None:
        self.gone: dict[tuple[int, str], list[int]] = {}  # generations, by queue and token
        self.kept: list[Row] = []
        self.queues: dict[int, QueueContext] = {}
        self.results: dict[int, bytes] = {}  # of jobs that are not kept, by generation
        self.members: dict[int, int] = {}  # the nodes of jobs of flows, by generation
        self.with_dependents: set[int] = set()  # generations

    def settle(self, tx: TransactionContext) -> set[int] | None:
        """Settle all jobs except those with dependents; return the generations of those.

        Returns None, and settles nothing, if one of the leases is no longer held.
        """
        cx = tx.cx
        cx.execute("SAVEPOINT completions")
        try:
            all_hold = self._remove(cx) and self._keep(cx, tx.expects_members)
        except OverflowError:  # settling the jobs one by one will find the job that causes it
            all_hold = False
        if not all_hold:
            cx.execute("ROLLBACK TO completions")
        cx.execute("RELEASE completions")
        if not all_hold:
            return None
        tx.expects_members = bool(self.members)
        self._count(tx)
        return self.with_dependents

    def _remove(self, cx: sqlite3.Connection) -> bool:
        for (qid, token), seqs in self.gone.items():
            done = cx.execute(_REMOVE, (numbers(seqs), qid, token, None)).rowcount
            if done != len(seqs):
                left = self._look(cx, qid, token, seqs)
                members = [seq for seq in seqs if seq in self.members]
                if members:
                    done += cx.execute(_REMOVE, (numbers(members), qid, token, _MEMBER)).rowcount
                if done + len(left) != len(seqs):
                    return False
                seqs[:] = [seq for seq in seqs if seq not in left]
        return True

    def _keep(self, cx: sqlite3.Connection, look_first: bool) -> bool:
        """Keep the jobs. `look_first`: the last call had jobs of flows, which a first attempt would miss."""
        if not self.kept:
            return True
        done = 0
        if not look_first:
            done = cx.executemany(_KEEP, self.kept).rowcount
            if done == len(self.kept):
                return True
        under: dict[tuple[int, str], list[int]] = {}
        for seq, qid, _, token, *_ in self.kept:
            under.setdefault((qid, token), []).append(seq)
        left: set[int] = set()
        for (qid, token), seqs in under.items():
            left |= self._look(cx, qid, token, seqs)
        members = self.members
        rows = [(*row[:-1], _MEMBER) if row[_SEQ] in members else row for row in self.kept]
        if left:
            rows = self.kept = [row for row in rows if row[_SEQ] not in left]
        if not look_first:
            rows = [row for row in rows if row[_SEQ] in members]
        done += cx.executemany(_KEEP, rows).rowcount
        return done == len(self.kept)

    def _look(self, cx: sqlite3.Connection, qid: int, token: str, seqs: list[int]) -> set[int]:
        """Return the jobs with dependents among those whose lease is held; note those of nodes."""
        (found,) = cx.execute(_LEFT, (numbers(seqs), qid, token)).fetchone()
        nodes = _decode_nodes(found)
        left = {seq for seq, nid in nodes if nid is None}
        self.members |= {seq: nid for seq, nid in nodes if nid}
        self.with_dependents |= left
        return left

    def _count(self, tx: TransactionContext) -> None:
        for (qid, _), seqs in self.gone.items():
            tx.move(self.queues[qid], RUNNING, None, len(seqs))
            tx.settled(self.queues[qid], len(seqs), 0)
        for qid, n in Counter([row[_QID] for row in self.kept]).items():
            tx.move(self.queues[qid], RUNNING, COMPLETED, n)
            tx.settled(self.queues[qid], n, 0)
        if self.members:
            results = {row[_SEQ]: row[_RESULT] for row in self.kept} | self.results
            done = NodeState.COMPLETED
            tx.flow_ends += [(nid, done, results.get(seq)) for seq, nid in self.members.items()]


def completions_of(
    tx: TransactionContext, settlements: Sequence[Settlement]
) -> tuple[Completions | None, list[int]]:
    """Split a call into plain completions and the positions of the other settlements.

    Jobs that are settled once and have no `then` do not affect each other, so their order is free. Otherwise
    all must be settled in the order of the call, and the first value is None.
    """
    completions, rest = Completions(), []
    gone, kept, queues, now = completions.gone, completions.kept, completions.queues, tx.now
    results = completions.results
    in_order = False
    name, queue, token = "", None, ""
    seqs: list[int] = []
    heap: list[int] = []  # generations of the current queue and token
    for place, one in enumerate(settlements):
        lease, to = one.lease, one.transition
        if type(lease) is not Lease or one.then:
            in_order = True
            no_outcome(one.transition)
            continue
        seqs.append(lease.generation)
        if lease.queue != name:
            name, queue, token = lease.queue, tx.queue(lease.queue), ""
            if queue is not None:
                queues[queue.qid] = queue
        if (
            queue is not None
            and not queue.has_partitions
            and to.state is _COMPLETED
            and to.error is None
            and to.charge
            and not to.lost
        ):
            if to.keep > 0:
                held = (lease.generation, queue.qid, lease.id, lease.token)
                reason = to.reason and storable(to.reason)
                kept.append((*held, now, now + to.keep, one.result, reason, None))
            else:
                if lease.token != token:
                    token = lease.token
                    heap = gone.setdefault((queue.qid, token), [])
                heap.append(lease.generation)
                if one.result is not None:
                    results[lease.generation] = one.result
        else:
            no_outcome(one.transition)
            rest.append(place)
    if in_order or len(set(seqs)) != len(seqs):
        return None, rest
    return completions, rest
