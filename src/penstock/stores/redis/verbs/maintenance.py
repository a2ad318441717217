"""promote: make due jobs available. prune: remove old jobs, unique keys and workers; cancel expired jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.stores.contract import MOST_PRUNED, Due, Pruned, SetAside
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.isolation import MISSING, call_any, call_each, run_for_queue, skips_corrupt_queues
from penstock.stores.redis.layout import id_of
from penstock.stores.redis.script_arguments import BATCH, CHANGED, HEAVY, chunks
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.verbs.delivering import deliver
from penstock.stores.redis.verbs.key_checks import report_unread_settings
from penstock.stores.redis.verbs.known_queues import known
from penstock.stores.redis.verbs.signalling import prune_signals
from penstock.stores.redis.verbs.workers import SILENT

#: Most jobs that one script promotes.
_PROMOTED = 1_000


@skips_corrupt_queues
def promote(context: Context, queues: Sequence[str], limit: int) -> CallPlan[Due]:
    """Make due jobs available, the earliest first over all queues."""
    if not context.queue_by_queue or len(queues) < 2:
        due = (yield from _promote(context, queues, limit))[0]
        return msgspec.structs.replace(due, set_aside=context.set_asides.take())
    moved, now, again = 0, 0, True
    dues: list[int] = []
    while again:  # the parts of the limit that some queues did not use are offered to all queues again
        firsts = yield from first_in_order(context, queues, b":due", limit)
        dues, again, left = [], False, limit
        for queue in queues:
            promoted = yield from run_for_queue(
                context, queue, _promote(context, [queue], firsts.count(queue))
            )
            if promoted is MISSING:
                continue
            part, used, skipped = promoted
            moved, now, left = moved + part.moved, max(now, part.now), left - used
            again = again or skipped
            if part.next is not None:
                dues.append(part.next)
        limit, again = left, again and left > 0
    return Due(moved, min(dues, default=None), now, context.set_asides.take())


def _promote(context: Context, queues: Sequence[str], limit: int) -> CallPlan[tuple[Due, int, bool]]:
    """Promote in steps that block the server for at most 5 ms.

    Returns the result, how much of the limit was used, and whether some entries became due later meanwhile.
    """
    moved, used = 0, 0
    while True:
        step = min(_PROMOTED, limit - used)
        (answer,) = raise_errors((yield [context.call("promote", queues, [step, context.floor])]))
        moved, used = moved + answer[0], used + answer[3]
        context.floor = max(context.floor, int(answer[5]))
        context.note_set_aside(answer[6:])
        if answer[3] < step or used >= limit:
            due = Due(moved, int(answer[1]) if answer[1] else None, int(answer[2]))
            return due, used, answer[4] == 1


def first_in_order(context: Context, queues: Sequence[str], order: bytes, limit: int) -> CallPlan[list[str]]:
    """Return the queues of the first `limit` entries of an index, over several slots."""
    to = max(0, limit - 1)
    calls = [context.on_key(queue, order, "ZRANGE", 0, to, "WITHSCORES") for queue in queues]
    entries = [
        (float(answer[i + 1]), answer[i], queue)
        for queue, answer in zip(queues, (yield from call_any(context, calls)), strict=True)
        if answer is not MISSING
        for i in range(0, len(answer), 2)
    ]
    return [queue for _, _, queue in sorted(entries)[: max(0, limit)]]


@skips_corrupt_queues
def prune(context: Context, limit: int, keep_finished: int, keep_dead: int, after: str) -> CallPlan[Pruned]:
    """Remove old jobs, unique keys and workers: first survey the queues, then prune those that need it."""
    names = [name for name in (yield from known(context)) if name > after]
    names, rest = names[:MOST_PRUNED], names[MOST_PRUNED:]
    yield from report_unread_settings(context, names)
    args = [max(0, limit), keep_finished, keep_dead]
    groups = [[name] for name in names] if context.queue_by_queue else chunks(names, HEAVY)
    calls = [(few[0], context.call("survey", few, args)) for few in groups]
    answers = yield from call_any(context, calls)
    seen = {
        name: one
        for few, answer in zip(groups, answers, strict=True)
        if answer is not MISSING
        for name, one in zip(few, answer, strict=True)
    }
    for name, answer in seen.items():
        _note_set_aside(context, name, answer[6])
    entries = [(name, field) for name, answer in seen.items() for field in answer[4]]
    if entries:
        yield from deliver(context, entries)
    sweep = _Sweep(context, limit, keep_finished, keep_dead)
    yield from sweep.passes({name: answer[0] for name, answer in seen.items()}, over=True)
    for name in seen:
        if seen[name][1] or seen[name][3]:
            yield from sweep.run(name, crowd=sweep.left, days=bool(seen[name][3]))
    yield from sweep.passes({name: answer[2] for name, answer in seen.items()}, over=False)
    key = context.redis_keys.workers
    silent = context.shared_call("workers", key, [SILENT, max(0, sweep.left)])
    (answer,) = yield from call_each(context, [(SHARED, silent)])
    keys = yield from _prune_keys(context, {name: answer[5] for name, answer in seen.items()}, limit)
    gone = 0 if answer is MISSING else answer[0]
    yield from prune_signals(context)
    following = names[-1] if rest else None
    return Pruned(sweep.finished, sweep.expired, gone, keys, context.set_asides.take(), following)


def _note_set_aside(context: Context, queue: str, kept: Sequence[bytes]) -> None:
    """Note jobs that other scripts have set aside."""
    for text in kept:
        at = 2 + int.from_bytes(text[:2], "little")
        cause = text[at:].decode(errors="backslashreplace")
        context.set_asides.add(SetAside("job", queue, id_of(text[2:at]), cause))


def _prune_keys(context: Context, over: dict[str, int], limit: int) -> CallPlan[int]:
    """Remove unique keys whose period is over; return their number."""
    gone = 0
    for name, many in over.items():
        while many > 0 and gone < limit:
            step = min(BATCH, many, limit - gone)
            (n,) = yield from call_each(context, [(name, context.call("prune_keys", [name], [step]))])
            if n is MISSING:
                break
            gone += n
            many -= step
    return gone


class _Sweep:
    """The progress of a prune: the jobs removed so far, and the rest of its limit."""

    def __init__(self, context: Context, limit: int, keep_finished: int, keep_dead: int) -> None:
        self._context = context
        self._keep = (keep_finished, keep_dead)
        self.left = limit
        self.finished = 0
        self.expired = 0

    def passes(self, due: dict[str, list[Any]], *, over: bool) -> CallPlan[None]:
        """Remove or cancel jobs, the longest overdue first, over all queues."""
        entries = sorted(
            (float(found[i + 1]), found[i], name)
            for name, found in due.items()
            for i in range(0, len(found), 2)
        )
        step = [name for _, _, name in entries[: max(0, self.left)]]
        for name in dict.fromkeys(step):
            n = step.count(name)
            yield from self.run(name, over=n if over else 0, expired=0 if over else n)

    def run(
        self, name: str, *, over: int = 0, crowd: int = 0, expired: int = 0, days: bool = False
    ) -> CallPlan[None]:
        """Prune one queue in steps."""
        while True:
            step = [min(CHANGED, n) for n in (over, crowd, expired)]
            args = [step[0], step[1], *self._keep, step[2], int(days)]
            (answer,) = yield from call_each(
                self._context, [(name, self._context.call("prune", [name], args))]
            )
            if answer is MISSING:
                return
            self._context.note_set_aside(answer[3:])
            answer = answer[:3]
            self.finished += answer[0]
            self.expired += answer[1]
            self.left -= answer[0] + answer[1]
            over, crowd, expired = over - step[0], crowd - step[1], expired - step[2]
            if sum(answer) < sum(step) or not (over or crowd or expired):
                return
