"""Several processes of one server: the supervisor that starts them, and starts them again when they die.

The supervisor makes the listening sockets and accepts no connection itself. A process that died is started
again on the same sockets, so connections that it had not accepted yet wait for the new one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.core.errors import PenstockError
from penstock.web.process_link import Act, ProcessLink

_log = logging.getLogger("penstock.web")

#: The variable that tells a process its sockets.
LISTENERS = "PENSTOCK_CHILD_LISTENERS"
_CONTROL = "control"
#: A process that lived this long (s) was healthy: its death does not lengthen the pause before a restart.
_HEALTHY = 30.0
#: How long (s) a stopping process may take longer than the time that requests in flight have.
_KILL_AFTER = 5.0
#: How long (s) an answer of a process is waited for: less than the one that asks for all of them waits.
_ANSWER_WITHIN = 7.0
#: Acts whose answers may be incomplete, and how long (s) they are waited for.
_MAY_MISS = {"counted": 2.0}


def inherited_listeners() -> tuple[socket.socket, dict[str, list[socket.socket]]] | None:
    """The control connection and the listening sockets that a supervisor gave to this process, if it did."""
    given = os.environ.pop(LISTENERS, "")
    if not given:
        return None
    opened = {name: [socket.socket(fileno=one) for one in fds] for name, fds in json.loads(given).items()}
    for sockets in opened.values():
        for one in sockets:
            one.set_inheritable(False)
    (control,) = opened.pop(_CONTROL)
    return control, opened


class ServerProcesses:
    """Runs `len(listeners)` processes of `command` until SIGTERM or SIGINT.

    - `listeners`: for each process, its listening sockets by name.
    - `grace`: how long (s) the processes may take to end.
    - `on_ready`: called when all processes serve for the first time.
    """

    def __init__(
        self,
        command: Sequence[str],
        listeners: Sequence[Mapping[str, Sequence[socket.socket]]],
        *,
        grace: float,
        on_ready: Callable[[], None],
    ) -> None:
        self._command = list(command)
        self._listeners = listeners
        self._grace = grace
        self._on_ready = on_ready
        self._running: dict[int, _ServerProcess] = {}  # by position
        self._began = False  # all processes have served once
        self._kept: Any = None  # what a process has last asked to keep for those that start later
        self._stopping = asyncio.Event()
        self._code = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> int:
        """Run until stopped; returns the exit code: 0 if all processes ended as they should."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        async with asyncio.TaskGroup() as group:
            for position in range(len(self._listeners)):
                group.create_task(self._keep_alive(position))
        return self._code

    async def ask_all(self, request: Sequence[Any]) -> list[Any]:
        """Ask each process that serves; `request` is the name of an act and its value.

        Raises PenstockError with the first error, after all have answered. A process that has ended is left
        out, and for some acts one that does not answer.
        """
        what, value = request
        timeout = _MAY_MISS.get(what, _ANSWER_WITHIN)
        ready = [one for one in self._running.values() if one.ready]
        asked = [one.link.ask(what, value, timeout) for one in ready]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[Any] = []
        for one, answer in zip(ready, answers, strict=True):
            if not isinstance(answer, BaseException):
                found.append(answer)
            elif not isinstance(answer, PenstockError):
                raise answer
            elif what in _MAY_MISS:
                _log.warning("server process %d: %s: %s", one.pid, what, answer)
            elif one.ready:
                raise PenstockError(f"server process {one.pid}: {answer}") from answer
        return found

    async def _keep_alive(self, position: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                process = _ServerProcess(self._command, self._listeners[position], self._acts(position))
            except OSError as error:
                failures += 1
                _log.error("a server process cannot be started: %s; the start is repeated", error)
                await self._unless_stopped(_pause(failures))
                continue
            self._running[position] = process
            code = await process.ended()
            if self._stopping.is_set():
                # a signal at its very start ends it before it has a handler
                if code not in (0, -signal.SIGTERM) or (code and process.served):
                    self._code = self._code or 1
                return
            if not self._began and not process.served:  # it has said why
                self._code = code if code > 0 else 1
                self._stop()
                return
            _log.error("server process %d ended (%s); it is started again", process.pid, _how(code))
            failures = 0 if time.monotonic() - began > _HEALTHY else failures + 1
            if failures > 1:
                await self._unless_stopped(_pause(failures))

    def _acts(self, position: int) -> dict[str, Act]:
        async def keep(state: Any) -> None:
            self._kept = state

        async def is_ready(_: Any) -> Any:
            self._running[position].ready = self._running[position].served = True
            count = sum(one.ready for one in self._running.values())
            if not self._began and count == len(self._listeners):
                self._began = True
                self._on_ready()
            return self._kept

        return {"ready": is_ready, "all": self.ask_all, "keep": keep}

    async def _unless_stopped(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # ── signals ──────────────────────────────────────────────────────────────────────────────────

    def _stop(self) -> None:
        """End all processes; a second call ends them at once."""
        if not self._stopping.is_set():
            self._stopping.set()
            for listeners in self._listeners:  # else new connections would wait for nothing
                for sockets in listeners.values():
                    for one in sockets:
                        one.close()
            asyncio.get_running_loop().call_later(self._grace + _KILL_AFTER, self._kill)
        for process in self._running.values():
            process.signal(signal.SIGTERM)

    def _kill(self) -> None:
        for process in self._running.values():
            if process.alive:
                _log.error("server process %d is killed: it did not end in time", process.pid)
                process.signal(signal.SIGKILL)

    def _reload(self) -> None:
        self._spawn(self._reload_all())

    async def _reload_all(self) -> None:
        try:
            await self.ask_all(["reload", None])
        except PenstockError as error:
            _log.error("reload: %s", error)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _ServerProcess:
    """One process, and the connection with it."""

    def __init__(
        self, command: list[str], listeners: Mapping[str, Sequence[socket.socket]], acts: Mapping[str, Act]
    ) -> None:
        #: Whether it serves now, and whether it ever has.
        self.ready = self.served = False
        own, theirs = socket.socketpair()
        given = {name: [one.fileno() for one in sockets] for name, sockets in listeners.items()}
        given[_CONTROL] = [theirs.fileno()]
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own command line
                command,
                env={**os.environ, LISTENERS: json.dumps(given)},
                pass_fds=[fd for fds in given.values() for fd in fds],
                stdin=subprocess.DEVNULL,
                process_group=0,  # signals of a terminal are for the supervisor, which passes them on
            )
        except OSError:
            own.close()
            raise
        finally:
            theirs.close()
        self.link = ProcessLink(own, acts)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait until the process has ended; returns its exit code, negative for a signal."""
        await self.link.connect()
        await self.link.run()  # its end closes the connection
        self.ready = False
        waiting: Awaitable[int] = asyncio.to_thread(self._process.wait)
        return await waiting


def _pause(failures: int) -> float:
    """How long (s) to wait before a process is started again."""
    return min(10.0, 0.1 * 2.0 ** min(failures, 7))


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
