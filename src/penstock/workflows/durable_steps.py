"""Durable steps of a running job: `StepFlow` in async tasks, `SyncStepFlow` in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from penstock.app.attempt import Attempt, NoCurrentJob, current_job
from penstock.client.job_call import JobCall
from penstock.client.signals import key_of
from penstock.codec import ResultCodec
from penstock.core import lazy
from penstock.core.errors import ConfigError, FlowError
from penstock.core.formats import Duration
from penstock.workflows import child_jobs
from penstock.workflows.branching import Branches, First
from penstock.workflows.iteration import Cursor
from penstock.workflows.step_memory import Pause, StepPlan, StepRequest, UserCall, VerbCall
from penstock.workflows.step_plans import StepOptions, StepPlans
from penstock.workflows.step_run import StepRun, within

T = TypeVar("T")
R = TypeVar("R")
#: The key of an operation; None: it has none.
Key = str | int | None


class _Flow:
    """What both kinds of flow share."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        assert attempt.owner is not None
        access = attempt.owner.step_access
        assert access is not None
        self._access = access
        self._run = StepRun(attempt, access)
        self._plans = StepPlans(self._run)

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
        return self._run.memory.checkpoint

    def finish(self) -> None:
        """Raise what the function may have swallowed, if it has returned. For the worker."""
        self._plans.finish()

    def error_to_end_with(self, error: BaseException) -> BaseException:
        """The error with which the attempt ends if middleware has replaced the flow's own. For the worker."""
        return self._plans.error_to_end_with(error)


class StepFlow(_Flow):
    """The durable steps of a job of an async task."""

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        undo: Callable[[T], object] | None = None,
        attempts: int = 1,
        retry_delay: Duration = "1s",
        key: Key = None,
        changing: bool = False,
        run_in: str | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        undo: Callable[[T], object] | None = None,
        attempts: int = 1,
        retry_delay: Duration = "1s",
        key: Key = None,
        changing: bool = False,
        run_in: str | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        undo: Callable[[Any], object] | None = None,
        attempts: int = 1,
        retry_delay: Duration = "1s",
        key: Key = None,
        changing: bool = False,
        run_in: str | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call a function, sync or async, and remember its result: when the job runs again, it is not called.

        - A step is identified by its name, its `key`, and the number of their use in its branch or loop item.
        - `undo`: called with the result if the flow does not succeed, the last step first.
        - `attempts`: how often the function is tried, `retry_delay` apart, before the step has failed.
        - `changing`: the arguments may differ from run to run; otherwise a difference parks the job.
        - `run_in`: "thread" (default of a plain function), "process", or "async": on the event loop.

        Raises FlowError for a result that cannot be remembered.
        """
        call = UserCall(function, args, kwargs, run_in=run_in)
        options = StepOptions(undo, attempts, retry_delay)
        return self._operation(self._plans.step(name, call, _key(key), changing, options), f"step {name!r}")

    def sleep(
        self, duration: Duration, *, key: Key = None, changing: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Wait without a slot. A restart does not begin the wait anew.

        `changing`: the duration differs from run to run; that of the first run counts.
        """
        return self._operation(self._plans.sleep(duration, _key(key), changing), "sleep")

    def wait_for(
        self, signal: str, /, *, key: Key = None, timeout: Duration | None = None, of: Any = Any
    ) -> Coroutine[Any, Any, Any]:
        """Wait for a signal without a slot, and return its data; None after `timeout`.

        `of`: the type of the data. A signal that does not fit is set aside, and the wait goes on.
        """
        codec = ResultCodec(of, name=f"signal {signal}")
        plan = self._plans.wait_for(signal, key_of(key), timeout, codec)
        return self._operation(plan, f"wait_for {signal!r}")

    def gather(
        self, calls: Sequence[JobCall[R]], *, key: Key = None, changing: bool = False
    ) -> Coroutine[Any, Any, list[R]]:
        """Enqueue jobs, wait for them without a slot, and return their results in order.

        Raises MemberFailed if some did not complete, after all have ended, and JobExists for a job with a
        given id that this flow has not enqueued.
        """
        return self._operation(child_jobs.gather(self._run, list(calls), _key(key), changing), "gather")

    def add(self, *calls: JobCall[Any], key: Key = None, changing: bool = False) -> Coroutine[Any, Any, None]:
        """Add members to the group of the running job: its body waits for them, and is passed their results.

        A run that comes here again adds none that were added. Raises ConfigError if the job is in no group.
        """
        return self._operation(child_jobs.add(self._run, calls, _key(key), changing), "add")

    def iterate(
        self, name: str, source: Any, /, *, every: Duration = "5s", key: Key = None
    ) -> AsyncIterator[Any]:
        """Iterate over a source; when the job runs again, continue after the last stored item.

        - `source`: a sequence, or a function that is called with the stored cursor (None at first) and yields
          pairs of an item and its cursor: any JSON value from which the source can continue after the item.
        - The cursor is stored at the interval `every`; after a crash, the items since then come again.
        - When the worker drains, the loop ends its run after an item, and goes on in another worker.
        - Operations inside the loop belong to the current item: their names are counted per item.
        """
        return _Items(self, Cursor(self._run, name, source, _key(key), every))

    def branches(self, **branches: Any) -> Coroutine[Any, Any, dict[str, Any]]:
        """Run coroutines or functions at the same time, and return their results by name.

        Operations inside a branch belong to the branch: their names are counted per branch. All branches run
        to their end; then an error is raised, several in an ExceptionGroup.
        """
        return self._composed(Branches(self._run, branches).run(self._drive), "branches")

    def first(self, **waits: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, tuple[str, Any]]:
        """Wait for the first of several operations, and return its name and value; the others are given up.

        The winner is stored. If several have ended, the one named first wins.
        """
        return self._composed(First(self._run, waits).run(self._drive), "first")

    async def failed(self, error: BaseException) -> BaseException:
        """Undo the steps if the flow has failed for good. For the worker."""
        try:
            return await self._drive(self._plans.failed(error))
        except BaseException as wrong:  # noqa: BLE001  # boundary: a user's undo function
            return wrong

    def _operation(self, plan: StepPlan[T], what: str) -> Coroutine[Any, Any, T]:
        """The coroutine of an operation, which must be awaited."""
        token = object()
        made = self._drive(plan, token)
        self._run.made(token, made, what)
        return made

    def _composed(self, coroutine: Coroutine[Any, Any, T], what: str) -> Coroutine[Any, Any, T]:
        """The coroutine of an operation that is made of others, which must be awaited."""
        token = object()

        async def operation() -> T:
            self._run.awaited(token)
            return await coroutine

        made = operation()
        self._run.made(token, made, what)
        return made

    async def _drive(self, plan: StepPlan[T], token: object = None) -> T:
        """Do what a plan asks for."""
        self._run.awaited(token)
        run = self._run
        run.plans += 1
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
            run.plans -= 1

    async def _do(self, request: StepRequest) -> Any:
        match request:
            case UserCall(function, args, kwargs, what, run_in):
                outside = within.get()
                within.set((self._run, what))
                try:
                    return _done(await self._run.calls.call(function, args, kwargs, run_in), what)
                finally:  # without a token: a coroutine may be closed in another context
                    within.set(outside)
            case VerbCall(name, args, options):
                return await getattr(self._access.store(), name)(*args, **options)
            case Pause(seconds):
                await asyncio.sleep(0.01 if seconds is None else seconds)


class _Items(Generic[T]):
    """The items of `StepFlow.iterate`. A `break` drops it, which ends its scope at once."""

    def __init__(self, flow: StepFlow, cursor: Cursor) -> None:
        self._flow = flow
        self._cursor = cursor
        self._pairs: Iterator[Any] | AsyncIterator[Any] | None = None
        self._at: Any = None
        self._over = False

    def __aiter__(self) -> _Items[T]:
        return self

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        drive, cursor = self._flow._drive, self._cursor
        if self._pairs is None:
            await drive(cursor.begin())
            self._pairs = cursor.pairs()
        else:
            cursor.leave()
            await drive(cursor.passed(self._at))
        pairs = self._pairs
        try:
            item, self._at = await anext(pairs) if isinstance(pairs, AsyncIterator) else next(pairs)
        except (StopIteration, StopAsyncIteration):
            self._over = True
            await drive(cursor.end())
            raise StopAsyncIteration from None
        cursor.enter(self._at)
        found: T = item
        return found

    async def aclose(self) -> None:
        """End the loop here, as a `break` does."""
        self._over = True
        self._cursor.leave()

    def __del__(self) -> None:
        self._cursor.leave()


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
        key: Key = None,
        changing: bool = False,
        run_in: str | None = None,
        **kwargs: Any,
    ) -> T:
        """As `StepFlow.step`. The function runs in this thread, or with `run_in="process"` in a process."""
        call = UserCall(function, args, kwargs, run_in=run_in)
        options = StepOptions(undo, attempts, retry_delay)
        value: T = self._drive(self._plans.step(name, call, _key(key), changing, options))
        return value

    def sleep(self, duration: Duration, *, key: Key = None, changing: bool = False) -> None:
        """As `StepFlow.sleep`."""
        self._drive(self._plans.sleep(duration, _key(key), changing))

    def wait_for(
        self, signal: str, /, *, key: Key = None, timeout: Duration | None = None, of: Any = Any
    ) -> Any:
        """As `StepFlow.wait_for`."""
        codec = ResultCodec(of, name=f"signal {signal}")
        return self._drive(self._plans.wait_for(signal, key_of(key), timeout, codec))

    def gather(self, calls: Sequence[JobCall[R]], *, key: Key = None, changing: bool = False) -> list[R]:
        """As `StepFlow.gather`."""
        return self._drive(child_jobs.gather(self._run, list(calls), _key(key), changing))

    def add(self, *calls: JobCall[Any], key: Key = None, changing: bool = False) -> None:
        """As `StepFlow.add`."""
        self._drive(child_jobs.add(self._run, calls, _key(key), changing))

    def iterate(self, name: str, source: Any, /, *, every: Duration = "5s", key: Key = None) -> Iterator[Any]:
        """As `StepFlow.iterate`."""
        cursor = Cursor(self._run, name, source, _key(key), every)
        try:
            self._drive(cursor.begin())
            pairs = cursor.pairs()
            if isinstance(pairs, AsyncIterator):
                raise ConfigError("iterate: a thread task needs a source that yields without `async`")
            for item, at in pairs:
                cursor.enter(at)
                yield item
                cursor.leave()
                self._drive(cursor.passed(at))
            self._drive(cursor.end())
        finally:  # also at a `break`
            cursor.leave()

    def branches(self, **branches: Callable[[], Any]) -> dict[str, Any]:
        """As `StepFlow.branches`, with functions, each in a thread of its own."""
        return Branches(self._run, branches).run_in_threads(self._drive)

    def first(self, **waits: Callable[[], Any]) -> tuple[str, Any]:
        """As `StepFlow.first`, with functions, each in a thread of its own."""
        return First(self._run, waits).run_in_threads(self._drive)

    def failed(self, error: BaseException) -> BaseException:
        """Undo the steps if the flow has failed for good. For the worker."""
        try:
            return self._drive(self._plans.failed(error))
        except BaseException as wrong:  # noqa: BLE001  # boundary: a user's undo function
            return wrong

    def _drive(self, plan: StepPlan[T]) -> T:
        run = self._run
        run.plans += 1
        try:
            with run.idle():
                return self._drive_through(plan)
        finally:
            run.plans -= 1

    def _drive_through(self, plan: StepPlan[T]) -> T:
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

    def _do(self, request: StepRequest) -> Any:
        match request:
            case UserCall(function, args, kwargs, what, run_in):
                outside = within.get()
                within.set((self._run, what))
                try:
                    return _done(self._run.calls.call_here(function, args, kwargs, run_in), what)
                finally:
                    within.set(outside)
            case VerbCall("extend", args, _):  # a verb of workers, which has no sync form
                extended = self._access.store().extend(*args)
                return asyncio.run_coroutine_threadsafe(extended, self._access.loop).result()
            case VerbCall(name, args, options):
                return getattr(self._access.store().sync, name)(*args, **options)
            case Pause(seconds):
                time.sleep(0.01 if seconds is None else seconds)


def _key(key: Key) -> str | None:
    """The key of an operation as text. Raises ConfigError."""
    return None if key is None else key_of(key)


def _done(value: Any, what: str) -> Any:
    """The value that a function of a flow returned. Raises FlowError if it stands for work not done."""
    if (why := lazy.refused(value)) is not None:
        raise FlowError(f"{what}: {why}")
    return value


def current_flow(*, version: str | None = None) -> StepFlow:
    """The durable steps of the running job, in an async task.

    `version`: if the flow began with another one, or without, its job is parked for a worker that has that
    release.

    Raises NoCurrentJob outside of a running job, and FlowError in a job that cannot have durable steps.
    """
    return _flow_of(StepFlow, "async", version)


def current_sync_flow(*, version: str | None = None) -> SyncStepFlow:
    """The durable steps of the running job, in a thread task. As `current_flow`."""
    return _flow_of(SyncStepFlow, "thread", version)


F = TypeVar("F", bound=_Flow)


def _flow_of(kind: Callable[[Attempt], F], run_in: str, version: str | None) -> F:
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
        attempt.flow = kind(attempt)
    flow: F = attempt.flow
    flow._run.set_version(version)
    return flow
