"""Count the ends of jobs that are nodes of flows.

The script that completes a job counts the end itself, if nothing follows from it. Otherwise the script that
ends a job notes the end in the job's slot (`ends`, see queue.lua). The settling worker counts it at once, and
`advance_flows` counts what nobody has. A repeated count changes nothing: each end has a number, and a node
remembers the highest that was counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.flow import NodeState, outcome_of
from penstock.core.flow_engine import Sweep
from penstock.core.job import Ref, State
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.flow_session import FlowChangeSet
from penstock.stores.redis.isolation import AWAY, alone, each
from penstock.stores.redis.keys import id_of
from penstock.stores.redis.layout import STATES
from penstock.stores.redis.verbs.flow_store import commit, note_missing, open_flow, proceed, read_nodes
from penstock.stores.redis.wire.calls import Call

__all__ = ["deliver_ends"]

#: Added to the number of a node in a job that runs again (RAN_AGAIN in queue.lua).
_RAN_AGAIN = 2**31


class _End(NamedTuple):
    """An entry of `ends`. `outcome`: None if the job, which had ended, runs again."""

    stamp: int
    flow: Ref
    node: int
    job: Ref
    outcome: NodeState | None
    result: bytes | None

    @property
    def place(self) -> tuple[str, int]:
        """The queue and the number of the entry."""
        return self.job.queue, self.stamp


def deliver_ends(context: Context, entries: Sequence[tuple[str, bytes]]) -> CallPlan[int]:
    """Count ends, given as queue and number, and remove them; return how many were counted.

    Those of a queue, or for a flow, that cannot be used now stay. So do those of other slots than that of
    their flow while too few replicas have confirmed the count.
    """
    by_home: dict[str, dict[Ref, list[_End]]] = {}
    for end in (yield from _ends(context, entries)):
        by_home.setdefault(end.flow.queue, {}).setdefault(end.flow, []).append(end)
    counted = 0
    gone: list[tuple[str, Call]] = []
    for home, flows in by_home.items():
        done, noted = yield from _count_all(context, home, flows)
        counted += done
        for end in noted:
            key = context.redis_keys.queue(end.job.queue) + b":ends"
            gone.append((end.job.queue, command(key, "HDEL", key, end.stamp)))
    if gone:
        yield from each(context, gone)
    return counted + len(gone)


def _ends(context: Context, entries: Sequence[tuple[str, bytes]]) -> CallPlan[list[_End]]:
    """Read entries of `ends`, given as queue and number; those that are away or gone are left out."""
    calls: list[tuple[str, Call]] = []
    for queue, stamp in entries:
        key = context.redis_keys.queue(queue) + b":ends"
        calls.append((queue, command(key, "HGET", key, stamp)))
    texts = yield from each(context, calls)
    found = zip(entries, texts, strict=True)
    return [_read(queue, stamp, text) for (queue, stamp), text in found if text and text is not AWAY]


def _count_all(context: Context, home: str, flows: dict[Ref, list[_End]]) -> CallPlan[tuple[int, list[_End]]]:
    """Count the ends of flows of one queue.

    Returns how many were counted and removed in one step, and the others that can be removed now.
    """
    elsewhere = any(end.job.queue != home for ends in flows.values() for end in ends)
    wanted = context.replicas_of_noted if elsewhere else 0
    last, confirmed = next(reversed(flows)), not wanted
    done = 0
    noted: list[_End] = []
    removable: list[_End] = []
    for flow, ends in flows.items():
        # replicas that have acknowledged the last write have those before it, too
        session = yield from alone(context, home, _count(context, flow, ends, wanted if flow is last else 0))
        if session is None:  # the flow is gone
            removable += ends
        elif session is not AWAY:
            counted = set(session.counted)
            left = [end for end in ends if end.place in counted and end.job.queue not in session.removed]
            done += len(counted) - len(left)
            noted += left
            confirmed = confirmed or (flow is last and not session.unconfirmed)
    return done, removable + (noted if confirmed else [])


def _read(queue: str, stamp: bytes, text: bytes) -> _End:
    state = STATES[text[0]]
    at = 2 + text[1]
    job = Ref(queue, id_of(text[2:at]))
    size = int.from_bytes(text[at : at + 2], "little")
    member, rest = text[at + 2 : at + 2 + size], text[at + 2 + size :]
    node = int.from_bytes(member[:4], "little") % _RAN_AGAIN
    home = member[5 : 5 + member[4]]
    flow = Ref(home.decode(), member[5 + member[4] :].decode())
    outcome = None if state is State.AVAILABLE else outcome_of(state)
    return _End(int(stamp), flow, node, job, outcome, rest[1:] if rest else None)


def _count(context: Context, flow: Ref, ends: list[_End], replicas: int) -> CallPlan[FlowChangeSet | None]:
    """Count ends of one flow; returns the stored change, or None if the flow is gone.

    If the flow has changed meanwhile, the ends are read again, too: another process may have counted them,
    or the server has restarted without them, and their jobs run again.
    """
    while ends:
        ends.sort()
        session = yield from open_flow(context, flow)
        if session is None:
            return None
        session.counted = [end.place for end in ends]
        yield from read_nodes(context, flow, session, [end.node for end in ends])
        cancelled = [end.node for end in ends if end.outcome is NodeState.CANCELLED]
        yield from note_missing(context, session, cancelled)  # a job that its flow cancelled may be retried
        for end in ends:
            if not session.is_news(end.node, end.job, end.stamp):
                continue
            session.engine.reopened(end.node, 0)  # a new end of an ended node: its job has run again
            if end.outcome is not None:
                session.engine.ended(end.node, end.outcome, end.result, 0)
        if session.head.sweep is Sweep.REOPEN:
            yield from note_missing(context, session, [end.node for end in ends])
        yield from proceed(context, flow, session)
        if (yield from commit(context, flow, session, replicas)):
            return session
        ends = yield from _ends(context, [(queue, b"%d" % stamp) for queue, stamp in session.counted])
    nothing: FlowChangeSet | None = AWAY
    return nothing
