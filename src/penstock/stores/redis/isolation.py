"""Run a verb over several queues although some of them cannot be used.

A queue cannot be used while its part of a Cluster is away (`outages.py`), or while one of its keys holds
something else than what Penstock wrote (`spoiled.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from penstock.core.errors import StoreCorrupt, StoreUnavailable
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.wire.calls import Call
from penstock.stores.redis.wire.faults import ReplyLost

__all__ = ["AWAY", "alone", "any_of", "each", "isolated"]

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

#: In place of an answer: the part of the Cluster that would give it is away, or its queue is spoiled, and
#: others may be there.
AWAY: Any = object()


def each(context: Context, asked: Sequence[tuple[str, Call]]) -> CallPlan[list[Any]]:
    """The answers to calls about queues (or SHARED). AWAY stands for those that do not come: on a Cluster, or
    once a step over several queues has failed by one."""
    if not context.apart:
        return raise_errors((yield [call for _, call in asked]))
    answers: list[Any] = [AWAY] * len(asked)
    context.met.update(queue for queue, _ in asked)
    open = [n for n, (queue, _) in enumerate(asked) if context.why(queue) is None]
    if open:
        replies = yield [asked[n][1]._replace(brief=context.clustered) for n in open]
        for n, reply in zip(open, replies, strict=True):
            if isinstance(reply, Exception):
                _lost(context, asked[n][0], reply)
            else:
                answers[n] = reply
                context.spoiled.well(asked[n][0])
    return answers


def any_of(context: Context, asked: Sequence[tuple[str, Call]]) -> CallPlan[list[Any]]:
    """As `each`. Raises StoreError if all are AWAY: then it is the store that is."""
    answers = yield from each(context, asked)
    if answers and all(answer is AWAY for answer in answers):
        raise context.unavailable(queue for queue, _ in asked)
    return answers


def alone(context: Context, queue: str, plan: CallPlan[T]) -> CallPlan[T]:
    """What one verb does with one queue of several; AWAY as in `each`.

    Raises ReplyLost where something may have been done: the verb is repeated, and finds it or goes without.
    """
    if not context.apart:
        return (yield from plan)
    context.met.add(queue)
    try:
        if context.why(queue) is None:
            found = yield from (_briefly(plan) if context.clustered else plan)
            context.spoiled.well(queue)
            return found
    except (StoreUnavailable, StoreCorrupt) as error:
        _lost(context, queue, error)
        if isinstance(error, ReplyLost):
            raise
    away: T = AWAY
    return away


def _lost(context: Context, queue: str, error: Exception) -> None:
    """This queue is left out for a while; raises what is no such thing."""
    if isinstance(error, StoreCorrupt):
        context.spoiled.lost(queue, error)
    elif isinstance(error, StoreUnavailable) and context.clustered:
        context.outages.lost(queue, error)
    else:
        raise error


_Verb = Callable[Concatenate[Context, P], CallPlan[T]]


def isolated(verb: _Verb[P, T]) -> _Verb[P, T]:
    """A verb over several queues that can be repeated: if one is spoiled it does without that one."""

    @wraps(verb)
    def isolating(context: Context, *args: P.args, **options: P.kwargs) -> CallPlan[T]:
        try:
            return (yield from verb(context, *args, **options))
        except StoreCorrupt:
            if context.apart:
                raise
            context.spoiled.met()
        return (yield from verb(context, *args, **options))

    return cast("_Verb[P, T]", isolating)


def _briefly(plan: CallPlan[T]) -> CallPlan[T]:
    try:
        calls = next(plan)
        while True:
            calls = plan.send((yield [call._replace(brief=True) for call in calls]))
    except StopIteration as end:
        found: T = end.value
        return found
