"""Wraps middleware around a block of code: its part before `call()`, the block, then its part after."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from penstock.app.attempt import Attempt, running
from penstock.client.middleware import AroundAttempt, wrap

__all__ = ["BlockMiddleware"]

#: The middleware awaits this in place of a function: the block runs at this point.
_BLOCK = object()


class BlockMiddleware:
    """The middleware of one attempt whose work is an `async with` block.

    Middleware can call a function, but not a block. So the middleware is driven step by step in the task that
    runs the block. Context variables and `asyncio.timeout` that the middleware sets apply to the block.
    """

    def __init__(
        self, around: tuple[AroundAttempt, ...], attempt: Attempt, result: Callable[[], Any]
    ) -> None:
        self._attempt = attempt
        self._result = result  # what `call()` returns
        self._owner = asyncio.current_task()
        self._called = False
        #: The return value of the middleware, after it has ended.
        self.value: Any = None
        self._coroutine = _awaited(wrap(around, attempt.job, self._call))

    async def begin(self) -> bool:
        """Run up to `call()`. False: the middleware returned without calling it; its result is `value`."""
        return await self._run(self._coroutine.send, None)

    async def end(self, error: BaseException | None) -> Any:
        """Continue after the block, which ended with `error` or None; return or raise as middleware does."""
        if error is None:
            await self._run(self._coroutine.send, self._result())
        else:
            await self._run(self._coroutine.throw, error)
        return self.value

    async def _run(self, step: Callable[[Any], Any], given: Any) -> bool:
        token = running.set(self._attempt)
        try:
            at_block, value = await _until_block(self._coroutine, step, given)
        finally:
            running.reset(token)
        self.value = value
        return at_block

    async def _call(self) -> Any:
        if self._called:
            raise RuntimeError("call() was awaited before: a block of app.take runs once")
        if asyncio.current_task() is not self._owner:
            raise RuntimeError(
                "call() stands for the block of app.take, which runs in the task that took the job: await it "
                "there, and not in create_task(), gather() or wait_for(); asyncio.timeout() works"
            )
        self._called = True
        return await _block()


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()


@types.coroutine
def _block() -> Generator[Any, Any, Any]:
    return (yield _BLOCK)


@types.coroutine
def _until_block(
    coroutine: Coroutine[Any, Any, Any], step: Callable[..., Any], given: Any
) -> Generator[Any, Any, tuple[bool, Any]]:
    """Run the coroutine up to its block (True, None), or to its end: (False, its return value)."""
    while True:
        try:
            awaited = step(given)
        except StopIteration as end:
            return False, end.value
        if awaited is _BLOCK:
            return True, None
        try:
            given = yield awaited
            step = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  # boundary: a cancellation, or an error of the awaited
            given, step = error, coroutine.throw
