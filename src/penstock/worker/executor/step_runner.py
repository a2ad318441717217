"""Runs functions of durable steps off the event loop, in threads and child processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from msgspec.structs import replace

from penstock.app.attempt import StepCall
from penstock.core.errors import ConfigError, FlowError, Interrupted, StepFailed
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools import CallThreadPool, ChildDied, ChildFailed, Done, ProcessPool


class StepRunner:
    """Runs the functions of the steps of all attempts. Each pool is made for its first call.

    The pools are not those of tasks: a step never waits for a slot that its own task has. The calls are kept
    in `LeasedJob.step_calls`, also those that the code has stopped waiting for.
    """

    def __init__(self, threads: int, make_processes: Callable[[], ProcessPool]) -> None:
        self._size = threads
        self._make_processes = make_processes
        self._threads: CallThreadPool | None = None
        self._processes: ProcessPool | None = None

    def in_thread(self, owner: Any, function: Callable[[], Any], context: Context) -> _ThreadCall:
        """Call a function for this leased job in a thread, in this context."""
        if self._threads is None:
            self._threads = CallThreadPool(self._size, _nothing, name="penstock-step")
            self._threads.start()
        call = _ThreadCall(self._threads, function)
        call.end = self._threads.run(call, call, context)
        _note(owner, call)
        return call

    def in_process(self, owner: Any, reference: tuple[str, str], arguments: bytes) -> _ProcessCall:
        """Call a function of a module for this leased job in a child process, with encoded arguments."""
        if self._processes is None:
            try:
                self._processes = self._make_processes()
            except ConfigError as error:  # no POSIX system
                raise FlowError(str(error)) from None
        call = _ProcessCall(self._processes, owner, reference, arguments)
        _note(owner, call)
        return call

    def close(self) -> None:
        """End the threads, waiting for at most half a second, and the processes."""
        if self._threads is not None:
            self._threads.close(0.5)
        if self._processes is not None:
            self._processes.close()


def _note(owner: LeasedJob, call: StepCall) -> None:
    """Note a call of this job, until its end."""
    calls = owner.step_calls = owner.step_calls or set()
    calls.add(call)

    def forget(end: asyncio.Future[Any]) -> None:
        calls.discard(call)
        if not end.cancelled():
            end.exception()  # nobody may wait for it any more

    call.end.add_done_callback(forget)


class _ThreadCall:
    """A call in a thread. Whoever pops the token decides whether it begins: the thread, or `withdraw`."""

    __slots__ = ("_function", "_threads", "_token", "end")

    def __init__(self, threads: CallThreadPool, function: Callable[[], Any]) -> None:
        self._threads = threads
        self._function = function
        self._token = [None]
        self.end: asyncio.Future[Any]

    def __call__(self) -> Any:
        try:
            self._token.pop()
        except IndexError:  # withdrawn
            return None
        return self._function()

    def withdraw(self) -> bool:
        try:
            self._token.pop()
        except IndexError:
            return False
        self.end.cancel()
        return True

    def interrupt(self, why: type[Interrupted]) -> None:
        if not self.withdraw():
            self._threads.interrupt(self, why)

    def kill(self) -> None:
        """A thread cannot be killed: see `interrupt`."""

    def abandon(self) -> None:
        if not self.withdraw() and self._threads.abandon(self):
            self.end.cancel()


class _ProcessCall:
    """A call in a child process. Its value is the bytes that the child answers."""

    __slots__ = ("_owner", "_processes", "end")

    def __init__(
        self, processes: ProcessPool, owner: LeasedJob, reference: tuple[str, str], arguments: bytes
    ) -> None:
        self._processes = processes
        self._owner = owner
        run = self._run(reference, arguments)
        self.end: asyncio.Future[Any] = asyncio.get_running_loop().create_task(run, name="penstock-step")

    def withdraw(self) -> bool:
        return self._processes.withdraw(self)

    def interrupt(self, why: type[Interrupted]) -> None:
        self.kill()

    def kill(self) -> None:
        self._processes.kill(self)

    def abandon(self) -> None:
        self.kill()

    async def _run(self, reference: tuple[str, str], arguments: bytes) -> bytes:
        owner, name = self._owner, reference[1]
        if owner.interrupt is not None:  # since the call was made
            raise owner.interrupt
        job = replace(owner.job, spec=replace(owner.job.spec, payload=arguments))
        seconds = None if owner.attempt is None else owner.attempt.remaining()
        try:
            answer = await self._processes.run(
                self,
                job,
                reference,
                now=owner.store_now(),
                seconds=seconds,
                step=True,
                on_progress=lambda reported: owner.report(owner.job, reported),
            )
        except ChildFailed as error:
            raise StepFailed(f"{name}: {error}") from None
        except ChildDied as error:
            if owner.interrupt is not None:
                raise owner.interrupt from None
            failed = StepFailed(f"the process of {name} ended without an answer: {error.cause}")
            if error.stderr:
                failed.add_note(error.stderr)
            raise failed from None
        return answer.result or b""


def _nothing(_done: list[Done]) -> None:
    """All calls of steps are awaited."""
