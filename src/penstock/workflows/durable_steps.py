"""Durable steps of a running job: `StepFlow` in async tasks, `SyncStepFlow` in threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar, overload

from penstock.app.attempt import Attempt, NoCurrentJob, current_job
from penstock.client.job_call import JobCall
from penstock.client.signals import key_of
from penstock.codec import ResultCodec
from penstock.core.duration import Duration
from penstock.core.errors import ConfigError, FlowError
from penstock.workflows.flow_memory import FlowMemory, Pause, Plan, UserCall, VerbCall, within
from penstock.workflows.iteration import Cursor
from penstock.workflows.running import RunningFlow
from penstock.workflows.step_plans import StepPlans

__all__ = ["StepFlow", "SyncStepFlow", "current_flow", "current_sync_flow"]

T = TypeVar("T")
R = TypeVar("R")


class _Flow:
    """What both kinds of flow share."""

    def __init__(self, attempt: Attempt, version: str | None) -> None:
        self._attempt = attempt
        assert attempt.owner is not None
        access = attempt.owner.step_access
        assert access is not None
        self._access = access
        self._plans = StepPlans(FlowMemory(attempt, access, version))

    @property
    def id(self) -> str:
        """The id of the job, which is that of the flow."""
        return self._attempt.id

    @property
    def queue(self) -> str:
        return self._attempt.queue

    @property
    def checkpoint(self) -> bytes | None:
        """What the job has stored as its checkpoint. For the worker."""
        return self._plans.memory.checkpoint

    def _next_add(self) -> str:
        """The key of this call of `add`: the same when the job runs again."""
        key = self._plans.memory.use("add!")
        self._plans.memory.check_use()
        return key

    def finish(self) -> None:
        """Raise what the function may have swallowed, if it has returned. For the worker."""
        self._plans.finish()

    def settled(self, error: BaseException) -> BaseException:
        """The error with which an attempt ends whose end middleware has replaced. For the worker."""
        return self._plans.settled(error)


class StepFlow(_Flow):
    """The durable steps of a job of an async task."""

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        undo: Callable[[T], object] | None = None,
        attempts: int = 1,
        retry_delay: Duration = "1s",
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        undo: Callable[[T], object] | None = None,
        attempts: int = 1,
        retry_delay: Duration = "1s",
        **kwargs: Any,
    ) -> T: ...
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        undo: Callable[[Any], object] | None = None,
        attempts: int = 1,
        retry_delay: Duration = "1s",
        **kwargs: Any,
    ) -> Any:
        """Call a function, sync or async, and remember its result: when the job runs again, it is not called.

        - The step is its name, and for a name used several times the number of the use.
        - `undo`: called with the result if the flow fails for good, the last step first.
        - `attempts`: how often the function is tried, `retry_delay` apart, before the job's attempt fails.

        Raises FlowError for a result that cannot be remembered.
        """
        return await self._run(
            self._plans.step(name, UserCall(function, args, kwargs), undo, attempts, retry_delay)
        )

    async def sleep(self, duration: Duration) -> None:
        """Wait without a slot. A restart does not begin the wait anew."""
        await self._run(self._plans.sleep(duration))

    async def wait_for(
        self, signal: str, /, *, key: str | int | None = None, timeout: Duration | None = None, of: Any = Any
    ) -> Any:
        """Wait for a signal without a slot, and return its data; None after `timeout`.

        `of`: the type of the data.
        """
        codec = ResultCodec(of, name=f"signal {signal}")
        return await self._run(self._plans.wait_for(signal, key_of(key), timeout, codec))

    async def gather(self, calls: Sequence[JobCall[R]]) -> list[R]:
        """Enqueue jobs, wait for them without a slot, and return their results in order.

        Raises MemberFailed if some did not complete, after all have ended.
        """
        return await self._run(self._plans.gather(list(calls)))

    async def add(self, *calls: JobCall[Any]) -> None:
        """Add members to the group of the running job: its body waits for them, and is passed their results.

        An attempt that runs again adds none that were added: a call is its number among the calls of `add`.
        Raises ConfigError if the job is in no group.
        """
        await RunningFlow(self._attempt.job.spec.flow).aadd(*calls, key=self._next_add())

    async def iterate(self, name: str, source: Any, /, *, every: Duration = "5s") -> AsyncIterator[Any]:
        """Iterate over a source, and go on behind the last stored item when the job runs again.

        - `source`: a sequence, or a function that is called with the stored cursor (None at first) and yields
          pairs of an item and its cursor: any JSON value from which the source can go on behind the item.
        - The cursor is stored `every` so often: the items since then come again after a crash.
        - When the worker drains, the loop ends its attempt after an item, and goes on in another worker.
        """
        cursor = Cursor(self._plans.memory, name, source, every)
        await self._run(cursor.begin())
        pairs = cursor.pairs()
        while True:
            try:
                item, at = await anext(pairs) if isinstance(pairs, AsyncIterator) else next(pairs)
            except (StopIteration, StopAsyncIteration):
                break
            yield item
            await self._run(cursor.passed(at))
        await self._run(cursor.end())

    async def failed(self, error: BaseException) -> BaseException:
        """Undo the steps if the flow has failed for good. For the worker."""
        try:
            return await self._run(self._plans.failed(error))
        except BaseException as wrong:  # noqa: BLE001  # boundary: a user's undo function
            return wrong

    async def _run(self, plan: Plan[T]) -> T:
        """Do what a plan asks for."""
        memory = self._plans.memory
        memory.plans += 1
        try:
            request = next(plan)
            while True:
                try:
                    answer = await self._do(request)
                except BaseException as error:  # noqa: BLE001  # boundary: the plan decides on any error
                    request = plan.throw(error)
                else:
                    request = plan.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            memory.plans -= 1

    async def _do(self, request: UserCall | VerbCall | Pause) -> Any:
        match request:
            case UserCall(function, args, kwargs, what):
                outside = within.get()
                within.set((self._plans.memory, what))
                try:
                    value = function(*args, **kwargs)
                    return await value if inspect.isawaitable(value) else value
                finally:  # without a token: a coroutine may be closed in another context
                    within.set(outside)
            case VerbCall(name, args, options):
                return await getattr(self._access.store(), name)(*args, **options)
            case Pause(seconds):
                await asyncio.sleep(0.01 if seconds is None else seconds)


class SyncStepFlow(_Flow):
    """The durable steps of a job of a thread task: as `StepFlow`, without `await`."""

    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        undo: Callable[[T], object] | None = None,
        attempts: int = 1,
        retry_delay: Duration = "1s",
        **kwargs: Any,
    ) -> T:
        """As `StepFlow.step`."""
        value: T = self._run(
            self._plans.step(name, UserCall(function, args, kwargs), undo, attempts, retry_delay)
        )
        return value

    def sleep(self, duration: Duration) -> None:
        """As `StepFlow.sleep`."""
        self._run(self._plans.sleep(duration))

    def wait_for(
        self, signal: str, /, *, key: str | int | None = None, timeout: Duration | None = None, of: Any = Any
    ) -> Any:
        """As `StepFlow.wait_for`."""
        codec = ResultCodec(of, name=f"signal {signal}")
        return self._run(self._plans.wait_for(signal, key_of(key), timeout, codec))

    def gather(self, calls: Sequence[JobCall[R]]) -> list[R]:
        """As `StepFlow.gather`."""
        return self._run(self._plans.gather(list(calls)))

    def add(self, *calls: JobCall[Any]) -> None:
        """As `StepFlow.add`."""
        RunningFlow(self._attempt.job.spec.flow).add(*calls, key=self._next_add())

    def iterate(self, name: str, source: Any, /, *, every: Duration = "5s") -> Iterator[Any]:
        """As `StepFlow.iterate`."""
        cursor = Cursor(self._plans.memory, name, source, every)
        self._run(cursor.begin())
        pairs = cursor.pairs()
        if isinstance(pairs, AsyncIterator):
            raise ConfigError("iterate: a thread task needs a source that yields without `async`")
        for item, at in pairs:
            yield item
            self._run(cursor.passed(at))
        self._run(cursor.end())

    def failed(self, error: BaseException) -> BaseException:
        """Undo the steps if the flow has failed for good. For the worker."""
        try:
            return self._run(self._plans.failed(error))
        except BaseException as wrong:  # noqa: BLE001  # boundary: a user's undo function
            return wrong

    def _run(self, plan: Plan[T]) -> T:
        memory = self._plans.memory
        memory.plans += 1
        try:
            request = next(plan)
            while True:
                try:
                    answer = self._do(request)
                except BaseException as error:  # noqa: BLE001  # boundary: the plan decides on any error
                    request = plan.throw(error)
                else:
                    request = plan.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            memory.plans -= 1

    def _do(self, request: UserCall | VerbCall | Pause) -> Any:
        match request:
            case UserCall(function, args, kwargs, what):
                outside = within.get()
                within.set((self._plans.memory, what))
                try:
                    return function(*args, **kwargs)
                finally:
                    within.set(outside)
            case VerbCall("extend", args, _):  # a verb of workers, which has no sync form
                extended = self._access.store().extend(*args)
                return asyncio.run_coroutine_threadsafe(extended, self._access.loop).result()
            case VerbCall(name, args, options):
                return getattr(self._access.store().sync, name)(*args, **options)
            case Pause(seconds):
                time.sleep(0.01 if seconds is None else seconds)


def current_flow(*, version: str | None = None) -> StepFlow:
    """The durable steps of the running job, in an async task.

    `version`: if the flow began with another one, its job is parked for a worker that has that release.

    Raises NoCurrentJob outside of a running job, and FlowError in a job that cannot have durable steps.
    """
    return _flow_of(StepFlow, "async", version)


def current_sync_flow(*, version: str | None = None) -> SyncStepFlow:
    """The durable steps of the running job, in a thread task. As `current_flow`."""
    return _flow_of(SyncStepFlow, "thread", version)


F = TypeVar("F", bound=_Flow)


def _flow_of(kind: Callable[[Attempt, str | None], F], run_in: str, version: str | None) -> F:
    try:
        attempt = current_job()
    except NoCurrentJob:
        raise NoCurrentJob("a flow is the running job: call current_flow() inside a task") from None
    access = None if attempt.owner is None else attempt.owner.step_access
    if access is None or access.run_in not in ("async", "thread"):
        raise FlowError(f"{attempt.task}: durable steps need an async or a thread task run by a Worker")
    if access.run_in != run_in:
        right = "current_flow()" if access.run_in == "async" else "current_sync_flow()"
        raise FlowError(f"{attempt.task} runs in {access.run_in!r}: its durable steps are those of {right}")
    if attempt.job.spec.at_most_once:
        raise FlowError(f"{attempt.task}: delivery='at-most-once' never starts again, which a flow needs")
    if attempt.job.members:
        raise FlowError(f"{attempt.task}: a batch cannot have durable steps")
    if attempt.flow is None:
        attempt.flow = kind(attempt, version)
    flow: F = attempt.flow
    return flow
