"""One child process as seen by its worker: start, calls in flight, kill, and the cause of its death."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Sequence

import msgspec

from penstock.worker.pools.calls import (
    CallRefused,
    ChildBroken,
    ChildDied,
    ChildEvents,
    ChildFailed,
    EncodedResult,
    ProcessCall,
)
from penstock.worker.pools.connection import ChildConnection, ChildStderr
from penstock.worker.pools.messages import (
    OVERWRITTEN,
    Broken,
    ChannelBroken,
    Failed,
    Frames,
    FromChild,
    FunctionReturned,
    Logged,
    Progressed,
    Ready,
    Refused,
    RunJob,
    Waits,
    WorkerHello,
    frame,
    from_child,
)
from penstock.worker.pools.shared_state import LARGE, Arena, CallPage, CallTokens, blocking_pair
from penstock.worker.pools.starters import ChildStarter, StartedChild, kill_group
from penstock.worker.signals import how_it_ended, oom_kills

#: Work (s) that may lie ready in a child, and the maximum number of its calls.
_WORK_AHEAD, _MAX_CALLS = 0.020, 128
#: No further call is given to a child that has arguments of this many bytes.
_MAX_BYTES = 8 << 20
#: One call may lie ready behind another one if each takes at most this long (s).
_ONE_AHEAD = 0.025
#: Time (s) that each call costs in addition to its function.
_OVERHEAD = 0.00004
#: While a child has more work (s) than _LATER, in calls of more than _NOT_SHORT (s) on average, its messages
#: are read every _PAUSE (s) instead of one by one: 5 % more calls of 1 ms. Shorter ones come in batches.
_LATER, _NOT_SHORT, _PAUSE = 0.005, 0.0003, 0.002
#: How many of its last calls the pace of a child is made of, about.
_AVERAGED = 8
#: The load (s) of a call of unknown duration: nothing is placed behind it.
_UNKNOWN = 1.0


class ChildProcess:
    """One process, the socket to it, and the calls that it was given.

    `table` is the file descriptor of the worker's lease table, if it has one. `max_jobs` is the number of
    calls that it is given at most (0: no limit).
    """

    def __init__(
        self, events: ChildEvents[ChildProcess], table: int | None = None, max_jobs: int = 0
    ) -> None:
        self.pid = 0
        #: Number of calls it has begun and ended.
        self.jobs = 0
        #: Calls that it was given and that have not ended, by number, in order.
        self.calls: dict[int, ProcessCall] = {}
        #: Monotonic time of the last end of a call, or of the first call given to it when it was idle.
        self.last_end = 0.0
        #: Whether its call takes longer than expected, so that nothing is placed behind it.
        self.stuck = False
        #: Whether its successor was started.
        self.has_successor = False
        self._last_given = self._last_begun = 0  # numbers of calls
        self._broken = False  # whether it has sent or shown what cannot be read
        self._work = 0.0  # expected seconds of its calls
        self._bytes = 0  # size of their arguments
        self._events = events
        self._table = table
        self._max_jobs = max_jobs
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._frames = Frames()
        self._process: StartedChild | None = None
        self._connection: ChildConnection | None = None
        self._tokens: CallTokens | None = None
        self._page: CallPage | None = None
        self._arena: Arena | None = None
        self._stderr: ChildStderr | None = None
        self._unsent: list[ProcessCall] = []
        self._oom_kills_before = oom_kills()
        #: Average seconds of the calls that it ended last.
        self.pace = 0.0
        self._killed: str | None = None  # why the worker killed it
        self._target: ProcessCall | None = None  # the call that it was killed for
        self._cause: str | None = None  # how it ended, until that is reported
        self._gone = False
        self._socket_closed = False  # whether its end of the socket is closed

    async def open(self, hello: WorkerHello, starter: ChildStarter) -> None:
        """Start the process and wait until it is ready for calls.

        Raises ChildBroken if it does not get ready.
        """
        own_end, child_end = blocking_pair()
        try:
            self._tokens = CallTokens()
            self._greet(own_end, hello)
            self._stderr = ChildStderr()
            try:
                self._process = await starter.start(hello, child_end.fileno(), self._stderr.write_end)
            finally:
                os.close(self._stderr.write_end)
            self.pid = self._process.pid
            self._process.watch(self._exited)
            self._stderr.start()
            self._connection = ChildConnection(own_end, self._on_data, self._on_closed)
        finally:
            child_end.close()
            if self._connection is None:
                own_end.close()
        await self._ready
        if self._gone:  # its death was reported before anybody could count it as ready
            raise ChildBroken("ended as soon as it was ready")

    def _greet(self, own_end: socket.socket, hello: WorkerHello) -> None:
        """Send the first message and its descriptors, before the process exists."""
        assert self._tokens is not None
        page = CallPage.create()
        try:
            self._page, self._arena = CallPage(page), CallPage.arena(page)
            fds = [self._tokens.child_end.fileno(), page]
            if self._table is not None:
                fds.append(self._table)
            socket.send_fds(own_end, [frame(hello)], fds)
        finally:
            os.close(page)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    def room(self, expected: float | None, size: float = 0.0) -> int:
        """How many more calls may be given to it that are expected to take this long and have this size."""
        calls = len(self.calls)
        if self.stuck or self._bytes >= _MAX_BYTES or self._killed is not None or self._gone:
            return 0
        if expected is None:
            room = 0 if calls else 1
        else:
            room = min(_MAX_CALLS - calls, int((_WORK_AHEAD - self._work) / (expected + _OVERHEAD)))
            if room < 1:
                short = calls == 1 and self._work <= _ONE_AHEAD and expected <= _ONE_AHEAD
                room = 1 if short or not calls else 0
            elif size * room > _MAX_BYTES:
                room = max(1, int((_MAX_BYTES - self._bytes) / size))
        return room if not self._max_jobs else max(0, min(room, self._max_jobs - self.jobs - calls))

    def _order(self, call: ProcessCall) -> bytes:
        """The message for this call. Large arguments go into the arena, if they fit."""
        job = call.job
        if len(job.spec.payload) >= LARGE and self._arena is not None:
            call.large = self._arena.put(job.spec.payload)
            if call.large is not None:
                spec = msgspec.structs.replace(job.spec, payload=b"")
                job = msgspec.structs.replace(job, spec=spec)
        return frame(
            RunJob(
                call.number,
                job,
                *call.reference,
                call.epoch,
                call.seconds,
                call.until,
                call.entry,
                call.large,
                call.step,
            )
        )

    @property
    def work(self) -> float:
        """Expected seconds of the calls in flight."""
        return self._work

    def give(self, call: ProcessCall, number: int, now: float) -> None:
        """Place this call in the child, behind its other calls. `flush` sends it."""
        if not self.calls:
            self.last_end = now
        call.child, call.number, call.given = self, number, now
        self._last_given = number
        call.cost = _UNKNOWN if call.expected is None else call.expected + _OVERHEAD
        self._work += call.cost
        self._bytes += len(call.job.spec.payload)
        self.calls[number] = call
        self._unsent.append(call)

    def flush(self) -> None:
        """Send the calls that were given since the last flush."""
        calls, self._unsent = self._unsent, []
        if not calls or self._connection is None or self._tokens is None:
            return
        self._connection.send([self._order(call) for call in calls])
        try:
            self._tokens.give([call.number for call in calls])
        except OSError:  # the child has closed its end: its death follows
            pass

    def take_back(self) -> list[ProcessCall]:
        """Remove and return the calls that have not begun, in order."""
        back, self._unsent = self._unsent, []
        try:
            numbers = [] if self._tokens is None else self._tokens.take_back()
        except ChannelBroken as error:
            self._break(error)
            numbers = []
        if numbers and self._connection is not None:
            self._connection.withdraw(len(numbers))
        back = [*(self.calls[number] for number in numbers if number in self.calls), *back]
        self._remove(back)
        return back

    def lies_for(self, now: float) -> float:
        """For how long (s) its next call has been ready; 0 if none is."""
        begun = self._begun()
        for call in self.calls.values():
            if call.number > begun:
                return now - call.given
        return 0.0

    def kill_call(self, call: ProcessCall) -> tuple[bool, list[ProcessCall]]:
        """Take back what has not begun; then kill the process, if this call is what it began last.

        Returns whether the call is in the child no longer, or soon, and the calls taken back. False: it has
        ended, and its end is in the socket.
        """
        back = self.take_back()
        if call in back:
            return True, back
        if next(reversed(self.calls.values()), None) is not call:
            return False, back
        self._target = call
        self._kill("killed by its worker")
        return True, back

    def started_at(self, call: ProcessCall) -> float | None:
        """When the call's function started; None if it does not run now."""
        current = self._current()
        return current[1] if current is not None and current[0] == call.number else None

    def running(self) -> ProcessCall | None:
        """The call whose function runs now, with `started` set."""
        current = self._current()
        call = None if current is None else self.calls.get(current[0])
        if call is not None and current is not None:
            call.started = current[1]
        return call

    def _current(self) -> tuple[int, float] | None:
        """The number of the running call and when its function started, as the child shows them."""
        if self._page is None or self._broken:
            return None
        try:
            current = self._page.current()
            if current is not None and not (
                current[0] <= self._begun() and 0.0 < current[1] <= time.monotonic()
            ):
                raise ChannelBroken(OVERWRITTEN)
        except ChannelBroken as error:
            self._break(error)
            return None
        return current

    def _begun(self) -> int:
        """The number of the last call that has begun, as the child shows it."""
        begun = self._last_begun if self._page is None else self._page.begun
        if self._last_begun <= begun <= self._last_given:
            self._last_begun = begun
        else:
            self._break(ChannelBroken(OVERWRITTEN))
        return self._last_begun

    def _remove(self, batch: Sequence[ProcessCall]) -> None:
        for call in batch:
            del self.calls[call.number]
            self._forget(call)

    def _forget(self, call: ProcessCall) -> None:
        call.child = None
        if call.large is not None and self._arena is not None:
            self._arena.free(call.large)
            call.large = None
        self._bytes -= len(call.job.spec.payload)
        self._work = self._work - call.cost if self.calls else 0.0

    # ── its end, by the worker ───────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """Kill the process and its own children now."""
        self._kill("killed by its worker")

    def close_input(self) -> None:
        """Let the child end after its calls."""
        if self._tokens is not None:
            self._tokens.end()
        if self._connection is not None:
            self._connection.end_input()

    def end(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the process to end, then kill it. Blocks for that time."""
        self.close_input()
        if self._process is not None and not self._gone:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                pass
            kill_group(self.pid)
            self._process.wait()
            self._gone = True
        self._close()
        error = ChildDied(self._killed or "ended by its worker", killed=True)
        for call in self._take_all():
            self._events.ended(call, None, error)

    def _take_all(self) -> list[ProcessCall]:
        calls = list(self.calls.values())
        self.calls.clear()
        for call in calls:
            self._forget(call)
        return calls

    # ── messages from the child ──────────────────────────────────────────────────────────────────

    def _on_data(self, data: bytes) -> None:
        if self._stderr is not None:  # what a call wrote comes before its end
            self._stderr.pump()
        if self._broken:
            return
        try:
            for body in self._frames.feed(data):
                self._handle_message(from_child(body))
        except ChannelBroken as error:
            self._break(error)
        self._events.received(self)
        if self._connection is not None and self._work > max(_LATER, _NOT_SHORT * len(self.calls)):
            self._connection.pause(_PAUSE)

    def _handle_message(self, message: FromChild) -> None:
        match message:
            case FunctionReturned():
                result = self._result(message)
                if (call := self._end_of(message.number)) is not None:
                    call.started, call.took, call.spent = message.started, message.took, message.spent
                    self._measure(message.spent)
                    self._events.ended(call, EncodedResult(result), None)
            case Failed():
                outcome = message.as_outcome()
                if (call := self._end_of(message.number)) is not None:
                    call.started, call.took = message.started, message.took
                    call.spent = message.took
                    self._measure(message.took)
                    self._events.ended(call, None, ChildFailed(outcome))
            case Refused():
                if (call := self._end_of(message.number)) is not None:
                    refused = CallRefused("before it began, its lease was lost or it was too late for it")
                    self._events.ended(call, None, refused)
            case Progressed() | Logged() | Waits():
                if (call := self.calls.get(message.number)) is not None:
                    self._events.progressed(call, message.reported)
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(None)
            case Broken():
                if not self._ready.done():
                    self._ready.set_exception(ChildBroken(message.cause, message.traceback))

    def _result(self, message: FunctionReturned) -> bytes | None:
        if message.large is None or self._arena is None:
            return message.result
        return self._arena.take_result(message.number, message.large)

    def _end_of(self, number: int) -> ProcessCall | None:
        """Remove the call that has ended; None if the worker has decided to kill it. Raises ChannelBroken."""
        call = self.calls.get(number)
        if call is None and self._killed is None:
            raise ChannelBroken("sent the end of a call that it does not have")
        if call is None or (self._killed is not None and len(self.calls) == 1):
            return None
        del self.calls[number]
        self._forget(call)
        self.jobs += 1
        self.last_end, self.stuck = time.monotonic(), False
        return call

    def _measure(self, spent: float) -> None:
        self.pace += (spent - self.pace) / min(_AVERAGED, self.jobs)

    # ── the end of the process ───────────────────────────────────────────────────────────────────

    def _exited(self) -> None:
        """Note that the process has ended; its last messages may still be in the socket."""
        if self._gone or self._process is None:
            return
        kill_group(self.pid)  # its own children must not outlive it: a job could run twice at a time
        code = self._process.wait()
        self._gone = True
        self._cause = self._killed or how_it_ended(code, self._oom_kills_before)
        if self._socket_closed or self._connection is None:
            self._report_end()
        else:
            self._loop.call_later(0.5, self._report_end)  # in case another process keeps the socket open

    def _on_closed(self) -> None:
        self._socket_closed = True
        if self._cause is not None:
            self._report_end()
        elif not self._gone:  # usually the process is about to end
            closed = "killed by its worker: it had closed its socket"
            self._loop.call_later(1.0, self._kill, closed)

    def _report_end(self) -> None:
        cause, self._cause = self._cause, None
        if cause is None:
            return
        behind = self.take_back()
        unstarted = [*self._claimed_only(), *behind]
        running = self.running()
        if self._stderr is not None:
            self._stderr.pump()
        stderr = "" if self._stderr is None else self._stderr.last_lines()
        self._close()
        if not self._ready.done():
            self._ready.set_exception(ChildBroken(cause))
            return
        error = ChildDied(cause, killed=self._killed is not None, stderr=stderr)
        for call in self._take_all():
            call.took = time.monotonic() - call.started if call is running else 0.0
            self._events.ended(call, None, error)
        self._events.died(self, error, unstarted)

    def _claimed_only(self) -> list[ProcessCall]:
        """Remove and return the calls that the dead child had claimed and not begun.

        Each returns once: its message itself may kill the child, as its size may.
        """
        begun = self._begun()
        back = [
            call
            for call in self.calls.values()
            if call.number > begun and call is not self._target and not call.was_claimed
        ]
        self._remove(back)
        for call in back:
            call.was_claimed = True
        return back

    def _kill(self, why: str) -> None:
        if not self._gone and self._killed is None:
            self._killed = why
            kill_group(self.pid)

    def _break(self, error: ChannelBroken) -> None:
        """Kill the process, because nothing that it says can be trusted; its death ends its call."""
        self._broken = True
        self._kill(f"killed by its worker: it {error}")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._tokens is not None:
            self._tokens.close()
            self._tokens = None
        if self._stderr is not None:
            self._stderr.pump()
            self._stderr.close()
        for memory in (self._page, self._arena):
            if memory is not None:
                memory.close()
        self._page = self._arena = None


def capacity(expected: float, size: float = 0.0) -> int:
    """How many calls of this expected duration (s) and size (bytes) lie ready in a child at most."""
    most = _MAX_CALLS if size * _MAX_CALLS <= _MAX_BYTES else int(_MAX_BYTES / size)
    return max(2 if expected <= _ONE_AHEAD else 1, min(most, int(_WORK_AHEAD / (expected + _OVERHEAD))))
