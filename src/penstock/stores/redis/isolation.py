"""Run a verb over several queues although some of them cannot be used.

A queue cannot be used while its part of a Cluster is away, or while another program has given one of its keys
a wrong type (`unusable_queues.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from penstock.core.errors import StoreCorrupt, StoreUnavailable
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.wire.calls import Call
from penstock.stores.redis.wire.faults import ReplyLost

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

#: Stands for an answer that is missing because its queue cannot be used now.
MISSING: Any = object()


def call_each(context: Context, asked: Sequence[tuple[str, Call]]) -> CallPlan[list[Any]]:
    """Send calls, if any, about queues (or SHARED); return their answers, MISSING for each that is missing.

    On a single server errors are raised, until a step over several queues has failed because of one queue.
    """
    if not asked:
        return []
    if not context.queue_by_queue:
        return raise_errors((yield [call for _, call in asked]))
    answers: list[Any] = [MISSING] * len(asked)
    context.used.update(queue for queue, _ in asked)
    open = [n for n, (queue, _) in enumerate(asked) if context.why_unusable(queue) is None]
    if open:
        replies = yield [asked[n][1]._replace(brief=context.clustered) for n in open]
        for n, reply in zip(open, replies, strict=True):
            if isinstance(reply, Exception):
                _leave_out(context, asked[n][0], reply)
            else:
                answers[n] = reply
        for queue in {asked[n][0] for n in open} - {asked[n][0] for n in open if answers[n] is MISSING}:
            context.corrupt.answered(queue)
    return answers


def call_any(context: Context, asked: Sequence[tuple[str, Call]]) -> CallPlan[list[Any]]:
    """As `call_each`; raises StoreError if all answers are MISSING."""
    answers = yield from call_each(context, asked)
    if answers and all(answer is MISSING for answer in answers):
        raise context.unavailable(queue for queue, _ in asked)
    return answers


def run_for_queue(context: Context, queue: str, plan: CallPlan[T]) -> CallPlan[T]:
    """Run a plan that concerns one queue of several; returns MISSING if that queue cannot be used.

    Raises ReplyLost if the server may have run it: the caller repeats the verb, which is repeatable.
    """
    if not context.queue_by_queue:
        return (yield from plan)
    context.used.add(queue)
    try:
        if context.why_unusable(queue) is None:
            found = yield from (_briefly(plan) if context.clustered else plan)
            context.corrupt.answered(queue)
            return found
    except (StoreUnavailable, StoreCorrupt) as error:
        _leave_out(context, queue, error)
        if isinstance(error, ReplyLost):
            raise
    away: T = MISSING
    return away


def _leave_out(context: Context, queue: str, error: Exception) -> None:
    """Leave this queue out for a while; raises an error that concerns more than one queue."""
    if isinstance(error, StoreCorrupt):
        context.corrupt.leave_out(queue, error)
    elif isinstance(error, StoreUnavailable) and context.clustered:
        context.outages.begin(queue, error)
    else:
        raise error


_Verb = Callable[Concatenate[Context, P], CallPlan[T]]


def skips_corrupt_queues(verb: _Verb[P, T]) -> _Verb[P, T]:
    """Decorate a repeatable verb over several queues: leave out queues with a key of a wrong type."""

    @wraps(verb)
    def skipping(context: Context, *args: P.args, **options: P.kwargs) -> CallPlan[T]:
        try:
            return (yield from verb(context, *args, **options))
        except StoreCorrupt:
            if context.queue_by_queue:
                raise
            context.corrupt.isolate()
        return (yield from verb(context, *args, **options))

    return cast("_Verb[P, T]", skipping)


def _briefly(plan: CallPlan[T]) -> CallPlan[T]:
    """Run a plan; each call is tried for a second at most."""
    try:
        calls = next(plan)
        while True:
            calls = plan.send((yield [call._replace(brief=True) for call in calls]))
    except StopIteration as end:
        found: T = end.value
        return found
