"""Count the ends of jobs that are nodes of flows, in the transaction of the verb that ends them."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from penstock.core.flow import NodeState, outcome_of
from penstock.core.job import NewJob, Ref, State
from penstock.stores.contract import FLOW_STEP, EnqueueStatus
from penstock.stores.sqlite.flow_session import FlowSession, decode_head
from penstock.stores.sqlite.rows import numbers
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.operating import retry
from penstock.stores.sqlite.verbs.producing import cancel, enqueue_one, get
from penstock.stores.sqlite.verbs.stepping import wake_job

__all__ = ["count_ends", "host_of"]

_NODES_OF = SQL["flows.nodes_of"]
_FLOW_OF = SQL["flows.flow_of"]
_OWN = SQL["flows.own"]

_KIND = itemgetter(0, 2)  # flow and outcome

_ENDED = (State.COMPLETED, State.CANCELLED, State.DEAD)


class _JobVerbs:
    """The verbs of jobs, as a flow needs them."""

    def enqueue(self, tx: TransactionContext, job: NewJob, nid: int) -> bool:
        if enqueue_one(tx, job, follows=True).status is not EnqueueStatus.NEW:
            return False
        tx.execute(_OWN, (tx.some_queue(job.queue).qid, job.id, nid))
        return True

    def cancel(self, tx: TransactionContext, ref: Ref, reason: str) -> None:
        cancel(tx, [ref], reason)

    def retry(self, tx: TransactionContext, ref: Ref) -> bool:
        retry(tx, [ref], None, None)
        (job,) = get(tx, [ref])
        return job is not None and job.state not in _ENDED  # an unreadable job stays as it is

    def adopt(self, tx: TransactionContext, ref: Ref, nid: int) -> NodeState | None:
        (job,) = get(tx, [ref])
        if job is None:
            return NodeState.GONE
        if job.ended:
            return outcome_of(job.state)
        tx.execute(_OWN, (tx.some_queue(ref.queue).qid, ref.id, nid))
        return None

    def wake(self, tx: TransactionContext, ref: Ref) -> None:
        wake_job(tx, ref)


_VERBS = _JobVerbs()


def host_of() -> _JobVerbs:
    """The verbs of jobs."""
    return _VERBS


def count_ends(tx: TransactionContext) -> None:
    """Count the ends that verbs of this transaction have noted, and those that follow from them."""
    while tx.flow_ends:
        ends, tx.flow_ends = tx.flow_ends, []
        sessions: dict[int, FlowSession] = {}
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
    sessions: dict[int, FlowSession],
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
            session = sessions[fid] = FlowSession(tx, fid, flow, host_of)
        session.add_row(index, row)
        places[row[0]] = fid, index
    return places
