"""prune: remove old jobs, unique keys and workers; cancel expired jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.stores.contract import Pruned, SetAside
from penstock.stores.redis.batching import BATCH, CHANGED, HEAVY, chunks
from penstock.stores.redis.context import CallPlan, Context
from penstock.stores.redis.isolation import AWAY, any_of, each, isolated
from penstock.stores.redis.keys import id_of
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.verbs.key_checks import report_unread_settings
from penstock.stores.redis.verbs.known_queues import known
from penstock.stores.redis.verbs.outbox import deliver
from penstock.stores.redis.verbs.stepping import prune_signals
from penstock.stores.redis.verbs.workers import SILENT

__all__ = ["prune"]


@isolated
def prune(context: Context, limit: int, keep_finished: int, keep_dead: int) -> CallPlan[Pruned]:
    """Remove old jobs, unique keys and workers: first survey all queues, then prune those that need it."""
    yield from report_unread_settings(context)
    names = yield from known(context)
    args = [max(0, limit), keep_finished, keep_dead]
    groups = [[name] for name in names] if context.apart else chunks(names, HEAVY)
    calls = [(few[0], context.call("survey", few, args)) for few in groups]
    answers = (yield from any_of(context, calls)) if names else []
    seen = {
        name: one
        for few, answer in zip(groups, answers, strict=True)
        if answer is not AWAY
        for name, one in zip(few, answer, strict=True)
    }
    for name, answer in seen.items():
        _note_set_aside(context, name, answer[6])
    lying = [(name, field) for name, answer in seen.items() for field in answer[4]]
    if lying:
        yield from deliver(context, lying)
    sweep = _Sweep(context, limit, keep_finished, keep_dead)
    yield from sweep.passes({name: answer[0] for name, answer in seen.items()}, over=True)
    for name in seen:
        if seen[name][1] or seen[name][3]:
            yield from sweep.run(name, crowd=sweep.left, days=bool(seen[name][3]))
    yield from sweep.passes({name: answer[2] for name, answer in seen.items()}, over=False)
    key = context.redis_keys.workers
    silent = context.shared_call("workers", key, [SILENT, max(0, sweep.left)])
    (answer,) = yield from each(context, [(SHARED, silent)])
    keys = yield from _prune_keys(context, {name: answer[5] for name, answer in seen.items()}, limit)
    gone = 0 if answer is AWAY else answer[0]
    yield from prune_signals(context)
    return Pruned(sweep.finished, sweep.expired, gone, keys, context.set_asides.take())


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
            (n,) = yield from each(context, [(name, context.call("prune_keys", [name], [step]))])
            if n is AWAY:
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
            (answer,) = yield from each(self._context, [(name, self._context.call("prune", [name], args))])
            if answer is AWAY:
                return
            self._context.note_set_aside(answer[3:])
            answer = answer[:3]
            self.finished += answer[0]
            self.expired += answer[1]
            self.left -= answer[0] + answer[1]
            over, crowd, expired = over - step[0], crowd - step[1], expired - step[2]
            if sum(answer) < sum(step) or not (over or crowd or expired):
                return
