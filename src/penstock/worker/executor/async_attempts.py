"""Runs async functions, each job in a context of its own."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import FrameType
from typing import Any

from penstock.client.middleware import wrap
from penstock.worker.leased_jobs import LeasedJob

__all__ = ["coroutine_of", "run_async", "run_in_middleware"]


async def run_async(leased: LeasedJob) -> Any:
    """Run the job's async function inside its middleware and return its result."""
    plan = leased.plan
    args, kwargs = plan.decode(leased.job)
    if plan.around:
        return await run_in_middleware(leased, lambda: plan.function(*args, **kwargs))
    context = copy_context()  # context variables that a job sets are not visible to the next one
    coroutine = context.run(plan.function, *args, **kwargs)
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration as end:  # it never awaited: this saves the generator below (0.4 us)
        return end.value
    return await _continue_in_context(context, coroutine, awaited)


def run_in_middleware(leased: LeasedJob, call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    """Await `call` with its task's middleware around it, and return the result of the outermost one."""
    context = copy_context()
    return _in_context(context, context.run(_awaited, wrap(leased.plan.around, leased.job, call)))


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def _in_context(context: Context, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await the coroutine with each of its steps inside the context."""
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration as end:
        return end.value
    return await _continue_in_context(context, coroutine, awaited)


def coroutine_of(frame: FrameType) -> object:
    """The coroutine of the attempt whose steps this frame runs; None for any other frame."""
    return frame.f_locals.get("coroutine") if frame.f_code is _continue_in_context.__code__ else None


@types.coroutine
def _continue_in_context(
    context: Context, coroutine: Coroutine[Any, Any, Any], awaited: Any
) -> Generator[Any, Any, Any]:
    """Run all steps after the first, whose awaitable is `awaited`."""
    while True:
        try:
            value = yield awaited
            step: Callable[..., Any] = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  # boundary: a cancellation, or an error of the awaited
            value, step = error, coroutine.throw
        try:
            awaited = context.run(step, value)
        except StopIteration as end:
            return end.value
