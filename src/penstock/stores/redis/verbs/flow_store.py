"""Read a flow, compute a change of it, and store the change unless the flow has changed meanwhile.

The script that completes a job counts the end itself, if nothing follows from it. Otherwise the script that
ends a job notes the end in the job's slot (`ends`, see queue.lua). The settling worker counts it at once, and
`advance_flows` counts what nobody has. A repeated count changes nothing: each end has a number, and a node
remembers the highest that was counted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.core.errors import EnqueueError, QueueClosed
from penstock.core.flow import NodeState, end_of_flow, outcome_of
from penstock.core.flow_engine import Sweep
from penstock.core.job import Ref, State
from penstock.stores.contract import FLOW_STEP, no_room
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.flow_session import RedisFlowSession, node_fields, read_head
from penstock.stores.redis.isolation import MISSING, call_each, run_for_queue
from penstock.stores.redis.layout import STATES, id_of, packed
from penstock.stores.redis.script_arguments import HEAVY, chunks, form_of, tail_of
from penstock.stores.redis.verbs.changing import retry
from penstock.stores.redis.verbs.delivering import deliver
from penstock.stores.redis.verbs.known_queues import now_of, register_for_flows
from penstock.stores.redis.verbs.producing import cancel, get
from penstock.stores.redis.wire.calls import Call, ServerRun
from penstock.stores.redis.wire.faults import ServerRestarted

_FIELDS = 1_000
_QUEUES = 200


def flow_key(context: Context, ref: Ref) -> bytes:
    return context.redis_keys.queue(ref.queue) + b":flow/" + ref.id.encode()


def open_flow(context: Context, ref: Ref) -> CallPlan[RedisFlowSession | None]:
    """Read a flow without its nodes."""
    key = flow_key(context, ref)
    fields = ("v", "head", "q", "p")
    run = ServerRun()
    ((version, head, counted, ended),) = raise_errors(
        (yield [command(key, "HMGET", key, *fields)._replace(run=run)])
    )
    if head is None:
        return None
    now = int((yield from now_of(context)))
    session = RedisFlowSession(read_head(head, counted), version or b"", int(counted or 0), now, run)
    session.parent_ended = ended
    return session


def read_nodes(
    context: Context, ref: Ref, session: RedisFlowSession, indexes: Sequence[int], *, inputs: bool = False
) -> CallPlan[None]:
    """Read nodes into the session, which is `torn` if the flow has changed since it was opened."""
    key, kinds = flow_key(context, ref), b"nji" if inputs else b"nj"
    step = len(kinds)
    parts = chunks(session.unread(indexes), _FIELDS)
    calls = [command(key, "HMGET", key, *node_fields(part, kinds), "v") for part in parts]
    answers = raise_errors((yield calls)) if calls else []
    for part, found in zip(parts, answers, strict=True):
        session.torn = session.torn or (found[-1] or b"") != session.version
        for n, index in enumerate(part):
            session.read(index, *found[n * step : n * step + step])


def was_added(context: Context, ref: Ref, session: RedisFlowSession, key: str) -> CallPlan[bool]:
    """Whether a call with this key has added members before; if not, the change notes the key."""
    flow, field = flow_key(context, ref), b"a" + key.encode()
    (found,) = raise_errors((yield [command(flow, "HEXISTS", flow, field)]))
    session.added = field
    return bool(found)


def proceed(context: Context, ref: Ref, session: RedisFlowSession, budget: int = FLOW_STEP) -> CallPlan[int]:
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
        yield from note_ended(context, session, before)
        if head.sweep in (Sweep.REOPEN, Sweep.RETRY) or session.has_again(before):
            yield from note_missing(context, session, before)


def note_ended(context: Context, session: RedisFlowSession, indexes: Sequence[int]) -> CallPlan[None]:
    """Note which of the jobs that others have enqueued for these nodes have ended."""
    if not (refs := session.externals(indexes)):
        return
    for ref, job in zip(refs, (yield from get(context, refs)), strict=True):
        if job is None or job.ended:
            session.ended[ref] = NodeState.GONE if job is None else outcome_of(job.state)


def release(context: Context, ref: Ref, session: RedisFlowSession, budget: int) -> CallPlan[int]:
    """Let the engine remove results that no node needs any longer; return the steps done."""
    done, key = 0, flow_key(context, ref)
    while session.head.releases and done < budget:
        index, at, _ = session.head.releases[0]
        yield from read_nodes(context, ref, session, [index])
        (inputs,) = raise_errors((yield [command(key, "HGET", key, b"i%d" % index)]))
        session.read_inputs(index, inputs)
        yield from read_nodes(context, ref, session, session.inputs(index)[at : at + budget - done])
        done += session.engine.release(budget - done)
    return done


def note_missing(context: Context, session: RedisFlowSession, indexes: Sequence[int]) -> CallPlan[None]:
    """Note which jobs of failed or cancelled nodes cannot be retried: they are gone, or unreadable."""
    nodes = [session.node(index) for index in indexes]
    failed = (NodeState.DEAD, NodeState.CANCELLED)
    wanted = [
        node.index
        for node in nodes
        if node is not None and (node.state in failed or node.swept or node.again)
    ]
    yield from note_missing_jobs(context, session, wanted)


def note_missing_jobs(context: Context, session: RedisFlowSession, indexes: Sequence[int]) -> CallPlan[None]:
    """Note which of these nodes have a job that cannot be retried."""
    nodes = [session.node(index) for index in indexes]
    refs = [node.ref for node in nodes if node is not None and node.ref]
    if refs:
        jobs = yield from get(context, refs)
        session.missing |= {
            ref for ref, job in zip(refs, jobs, strict=True) if job is None or job.spec.unreadable
        }


def commit(context: Context, ref: Ref, session: RedisFlowSession, replicas: int = 0) -> CallPlan[bool]:
    """Store the change, and enqueue jobs. False: nothing was stored, because the flow has changed.

    So it may have if the server has restarted since it was read: without its last moments, and without the
    retries and cancellations of this change.

    `replicas`: how many must acknowledge it; if fewer do, `session.unconfirmed` says so.
    Jobs are retried and cancelled first, in the order of the passes: if this process dies in between, that
    happens again. But not if the flow has changed: it may want something else of them by now.
    """
    if session.torn:
        return False
    if session.cancels or session.retries or session.reruns:
        key = flow_key(context, ref)
        (version,) = raise_errors((yield [command(key, "HGET", key, "v")]))
        if (version or b"") != session.version:
            return False
    if session.cancels and context.queue_by_queue:
        yield from _deliver_all(context, ref.queue)  # a job of a node that has started may still be there
    if session.retries:
        yield from retry(context, session.retries, completed=False)
    if session.reruns:
        yield from retry(context, session.reruns)
    for reason in dict.fromkeys(reason for _, reason in session.cancels):
        yield from cancel(context, [one for one, why in session.cancels if why == reason], reason)
    names = list(dict.fromkeys([*(name for name, _ in session.starts), *(job.queue for job in session.jobs)]))
    numbers = {ref.queue: 1}
    if not context.queue_by_queue:
        for name in [*names, *(queue for queue, _ in session.counted)][:_QUEUES]:
            numbers.setdefault(name, len(numbers) + 1)
    yield from _ask_others(context, session, numbers)
    yield from register_for_flows(context, {ref.queue, *names, *session.queues_of_enqueued})
    args = _arguments(context, ref, session, numbers)
    call = context.call("flow_commit", list(numbers), args, repeatable=False, replicas=replicas)
    (answer,) = yield [call._replace(run=session.run)]
    if isinstance(answer, ServerRestarted):
        return False
    raise_errors([answer])
    (stored, highest, out), session.unconfirmed = context.confirmed(answer)
    context.floor = max(context.floor, int(highest))
    if stored == 2:
        number, _, *full = out
        raise _refusal(list(numbers)[int(number) - 1], session, full)
    if not stored:
        return False
    session.removed = {queue for queue, _ in session.counted if queue in numbers}
    if out:
        yield from deliver(context, [(ref.queue, name) for name in out])
    return True


def _ask_others(context: Context, session: RedisFlowSession, numbers: dict[str, int]) -> CallPlan[None]:
    """Ask the queues that the commit cannot ask, in other slots of a Cluster, if they take a new flow."""
    others = [(name, count) for name, count in session.starts if name not in numbers]
    answers = (
        raise_errors((yield [context.call("admit", [name], [n]) for name, n in others])) if others else []
    )
    for (name, _), answer in zip(others, answers, strict=True):
        if answer:
            raise _refusal(name, session, answer[1:])


def _refusal(queue: str, session: RedisFlowSession, full: list[bytes]) -> EnqueueError:
    """The error for a queue that does not take a flow; see `not_admitted` in queue.lua."""
    if not full:
        return QueueClosed(queue)
    waits, retry_after, size = map(int, full[0].split())
    return no_room(queue, dict(session.starts)[queue], size, retry_after, waits=waits == 1)


def _deliver_all(context: Context, queue: str) -> CallPlan[None]:
    """Deliver all entries in `out` of this queue."""
    key = context.redis_keys.queue(queue) + b":out"
    (names,) = raise_errors((yield [command(key, "HKEYS", key)]))
    if names:
        yield from deliver(context, [(queue, name) for name in names])


def remove(context: Context, ref: Ref, session: RedisFlowSession | None) -> CallPlan[None]:
    """Remove a flow and its nodes, unless it has changed since it was read: it may have been retried."""
    version = b"" if session is None else session.version
    args: list[bytes | str | int] = [context.floor, ref.id, version, "", 0, "gone", 0]
    raise_errors((yield [context.call("flow_commit", [ref.queue], args, repeatable=False)]))


def _arguments(
    context: Context, ref: Ref, session: RedisFlowSession, numbers: dict[str, int]
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
    ends = [part for queue, stamp in session.counted if queue in numbers for part in (numbers[queue], stamp)]
    look = session.look_at
    args: list[bytes | str | int] = [
        context.floor,
        ref.id,
        session.version,
        os.urandom(8),
        session.head.created_at,
    ]
    args += ["" if look is None else look, session.uncounted]
    args += [int(session.scripts_count), int(session.needs_all_ends), len(profiles)]
    for pair in profiles.items():
        args += pair
    news = session.news_for_parent
    parent = packed(session.head.spec.wakes) if news else b""
    woken = b"" if session.wakes is None else packed(session.wakes.id)
    end = packed(end_of_flow(ref).id) if session.is_news_for_waiters else b""
    checks = session.checks()
    starts = [part for queue, n in session.starts if queue in numbers for part in (numbers[queue], n)]
    lists = [part for some in (checks, sets, dels, ends, starts) for part in (len(some), *some)]
    return [*args, *lists, b"".join(blob), end, woken, parent, news]


# ── the ends of jobs that are nodes ──


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
        gone += [context.on_key(end.job.queue, b":ends", "HDEL", end.stamp) for end in noted]
    yield from call_each(context, gone)
    return counted + len(gone)


def _ends(context: Context, entries: Sequence[tuple[str, bytes]]) -> CallPlan[list[_End]]:
    """Read entries of `ends`, given as queue and number; those that are away or gone are left out."""
    calls = [context.on_key(queue, b":ends", "HGET", stamp) for queue, stamp in entries]
    texts = yield from call_each(context, calls)
    found = zip(entries, texts, strict=True)
    return [_read(queue, stamp, text) for (queue, stamp), text in found if text and text is not MISSING]


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
        session = yield from run_for_queue(
            context, home, _count(context, flow, ends, wanted if flow is last else 0)
        )
        if session is None:  # the flow is gone
            removable += ends
        elif session is not MISSING:
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


def _count(context: Context, flow: Ref, ends: list[_End], replicas: int) -> CallPlan[RedisFlowSession | None]:
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
    nothing: RedisFlowSession | None = MISSING
    return nothing
