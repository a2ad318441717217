"""A job taken without a worker: its facts, arguments and lease, and what watches and wraps its block."""

from __future__ import annotations

import asyncio
import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any

from msgspec.structs import replace

from penstock.app.attempt import Attempt, Reported, running
from penstock.app.outcome import result_of
from penstock.app.task import Task
from penstock.client.middleware import AroundAttempt, wrap
from penstock.codec import ANY_RESULT
from penstock.core import errors
from penstock.core.job import Job, Progress, read_json
from penstock.core.lifecycle import limit_passed
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Store
from penstock.stores.job_log import JobLog, LogLine, store_logs

_log = logging.getLogger("penstock.take")

#: The messages of the errors that end a block, with the id of its job.
INTERRUPTED_BECAUSE: dict[type[errors.Interrupted], str] = {
    errors.AttemptLost: "the lease of job {} is lost: the block's outcome is ignored",
    errors.AttemptCancelled: "job {} was cancelled while it ran",
}


class Taken(Attempt):
    """A taken job: the facts of its attempt, its arguments, its lease."""

    __slots__ = ("_by", "_limit", "_log", "_progress", "_store", "_task", "result", "value")

    def __init__(
        self, job: Job, store: Store, by: int, limit: float | None, task: Task[..., Any] | None
    ) -> None:
        ends = None if limit is None else time.monotonic() + limit
        super().__init__(job, self._keep_progress, ends)
        self._limit = limit
        self._store = store
        self._by = by
        self._task = task
        self._progress: Progress | None = None
        self._log = JobLog(job)
        #: The block's result, and its encoded bytes.
        self.value: Any = None
        self.result: bytes | None = None

    @property
    def payload(self) -> bytes:
        """The payload as it was enqueued."""
        return self.job.spec.payload

    def json(self) -> Any:
        """The payload, decoded as JSON. Raises Undecodable."""
        return read_json(self.payload, self.id)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, in the types of the task. Raises Undecodable or ConfigError."""
        return self._call()[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments, in the types of the task."""
        return self._call()[1]

    def returns(self, value: Any) -> None:
        """Set the job's result for `handle.result()`; kept for the job's retention.

        Raises ResultError for a value that cannot be a result; a block that ends with this error makes its
        job dead.
        """
        codec = ANY_RESULT if self._task is None else self._task.result
        kept = self.job.spec.retention > 0 or self.job.spec.flow is not None
        self.result = result_of(value, codec.encode if kept else None, self.job)
        self.value = value

    async def extend(self) -> None:
        """Extend the lease now, in addition to the heartbeat. Raises AttemptLost if it is lost."""
        await self._renewed()

    async def record_start(self) -> None:
        """Like `extend`, and store the start so that it survives a power cut."""
        await self._renewed(lasting=True)

    async def _renewed(self, *, lasting: bool = False) -> None:
        if await self.send_heartbeat(lasting=lasting) is LeaseStatus.LOST:
            raise errors.AttemptLost(INTERRUPTED_BECAUSE[errors.AttemptLost].format(self.id))

    async def send_heartbeat(self, *, lasting: bool = False) -> LeaseStatus:
        """Send one heartbeat: extend the lease, record the start, store the progress."""
        reported = self._progress
        request = HeartbeatRequest(self.job.lease, self._by, started=True, lasting=lasting, progress=reported)
        try:
            (status,) = await self._store.extend([request])
        except errors.StoreError:
            raise
        except Exception:  # noqa: BLE001  # boundary: the lease must hold even if the progress cannot be stored
            _log.exception("job %s: progress could not be stored", self.id)
            (status,) = await self._store.extend([replace(request, progress=None)])
        if status is LeaseStatus.UNKNOWN:
            raise errors.StoreUnavailable(
                f"job {self.id}: the part of the store that holds its queue is unreachable"
            )
        if self._progress is reported:  # otherwise newer progress waits
            self._progress = None
        if status is LeaseStatus.CANCEL_ASKED:
            self._cancelled = True
        if self._log.waits:
            await store_logs(self._store, [(self.job.lease, self._log)], self._by)
        return status

    def limit_passed(self) -> str:
        """Which limit has passed: the timeout of the attempt, or the deadline of its job."""
        return f"job {self.id}: {limit_passed(self.job, self._limit or 0.0)}"

    @property
    def has_progress(self) -> bool:
        """Whether there is progress, or are log lines, not stored yet."""
        return self._progress is not None or self._log.waits

    def _keep_progress(self, _: Job, reported: Reported) -> None:
        if isinstance(reported, Progress):
            self._progress = reported
        elif isinstance(reported, LogLine):
            self._log.append(reported)

    def _call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._task is None:
            raise errors.ConfigError(f"this app has no task {self.task!r}: read .payload or .json() instead")
        try:
            return self._task.args.decode(self.payload)
        except errors.SignatureMismatch as error:  # a block that ends with this error parks the job
            error.job = self.id
            raise


# ── the watch of a block ─────────────────────────────────────────────────────────────────────────

# It extends the lease, and cancels the block at its timeout or cancellation.


class BlockWatch:
    """Extends the lease of a block's job, and cancels the block if it must stop.

    The cancellation is replaced by an error with the reason when it arrives.
    """

    def __init__(self, taken: Taken, every: float) -> None:
        self._taken = taken
        self._every = every
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._cancelled_before = owner.cancelling()
        self._why: type[errors.Interrupted] | None = None
        self._reason_raised = False  # whether the reason was raised
        self._heartbeat_task = asyncio.create_task(self._send_heartbeats(), name="penstock-take")
        left = taken.remaining()
        self._alarm = (
            None if left is None else self._loop.call_later(left, self._interrupt, errors.AttemptTimeout)
        )

    def meaning(self, error: BaseException | None) -> BaseException | None:
        """The error itself, or the reason for the cancellation, if this watch cancelled the block."""
        if self._why is None or self._reason_raised:
            return error
        self._reason_raised = True
        if self._owner.uncancel() > self._cancelled_before or not _is_cancel(error):
            return error
        if self._why is errors.AttemptTimeout:
            return errors.AttemptTimeout(self._taken.limit_passed())
        return self._why(INTERRUPTED_BECAUSE[self._why].format(self._taken.id))

    @property
    def cancelled(self) -> bool:
        """Whether the block's task was cancelled by other code."""
        return self._owner.cancelling() > self._cancelled_before

    def stands(self, error: BaseException | None) -> bool:
        """Whether an error ends the attempt regardless of middleware."""
        if _is_cancel(error):  # middleware may have cancelled, as asyncio.timeout does
            return self.cancelled
        return isinstance(error, errors.Interrupted) or not isinstance(error, Exception | None)

    def stop(self) -> None:
        """End the watch."""
        self._cancel()

    def abandon(self) -> None:
        """Stop extending the lease. May be called from any thread."""
        if not self._heartbeat_task.done() and not self._loop.is_closed():
            _log.warning("job %s: its block was never left; its lease expires", self._taken.id)
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._heartbeat_task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()

    async def _send_heartbeats(self) -> None:
        while self._why is None and not self._owner.done():
            try:
                status = await self._taken.send_heartbeat()
            except errors.StoreError as error:  # the lease holds until it is reclaimed
                _log.warning("heartbeat of job %s failed: store unreachable: %s", self._taken.id, error)
                status = LeaseStatus.HELD
            if status is not LeaseStatus.HELD:
                self._interrupt(errors.AttemptLost if status is LeaseStatus.LOST else errors.AttemptCancelled)
            await asyncio.sleep(self._every)

    def _interrupt(self, why: type[errors.Interrupted]) -> None:
        if self._why is None:
            self._why = why
            self._owner.cancel()


def _is_cancel(error: BaseException | None) -> bool:
    return isinstance(error, asyncio.CancelledError)


# ── middleware around a block ────────────────────────────────────────────────────────────────────

# Its part before `call()`, the block, then its part after.


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
