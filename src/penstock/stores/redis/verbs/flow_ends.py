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
from penstock.stores.redis.batching import chunks
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import AWAY, alone, each
from penstock.stores.redis.keys import id_of
from penstock.stores.redis.layout import STATES
from penstock.stores.redis.verbs.flow_store import commit, note_missing, open_flow, proceed, read_nodes
from penstock.stores.redis.wire.calls import Call

__all__ = ["deliver_ends"]

#: Entries of one command.
_MOST = 1_000
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


def deliver_ends(context: Context, entries: Sequence[tuple[str, bytes]]) -> CallPlan[int]:
    """Count ends, given as queue and number, and remove them; return how many were counted.

    Those of a queue, or for a flow, that cannot be used now stay.
    """
    stamps: dict[str, list[bytes]] = {}
    for queue, stamp in entries:
        stamps.setdefault(queue, []).append(stamp)
    parts = [(queue, part) for queue, some in stamps.items() for part in chunks(some, _MOST)]
    by_flow: dict[Ref, list[tuple[_End, bytes]]] = {}
    found = yield from each(context, [_call(context, queue, "HMGET", part) for queue, part in parts])
    for (queue, part), texts in zip(parts, found, strict=True):
        for stamp, text in () if texts is AWAY else zip(part, texts, strict=True):
            if text is not None:
                end = _read(queue, stamp, text)
                by_flow.setdefault(end.flow, []).append((end, stamp))
    counted: dict[str, list[bytes]] = {}
    for flow, ends in by_flow.items():
        if (
            yield from alone(context, flow.queue, _count(context, flow, [end for end, _ in ends]))
        ) is not AWAY:
            for end, stamp in ends:
                counted.setdefault(end.job.queue, []).append(stamp)
    gone = [
        _call(context, queue, "HDEL", part) for queue, some in counted.items() for part in chunks(some, _MOST)
    ]
    if gone:
        yield from each(context, gone)
    return sum(len(some) for some in counted.values())


def _call(context: Context, queue: str, verb: str, stamps: Sequence[bytes]) -> tuple[str, Call]:
    """A command on some entries of `ends`."""
    key = context.redis_keys.queue(queue) + b":ends"
    return queue, command(key, verb, key, *stamps)


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


def _count(context: Context, flow: Ref, ends: list[_End]) -> CallPlan[bool]:
    ends.sort()
    while True:
        session = yield from open_flow(context, flow)
        if session is None:
            return True
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
        if not session.changed:  # all of them were counted before
            return True
        yield from proceed(context, flow, session)
        if (yield from commit(context, flow, session)):
            return True
