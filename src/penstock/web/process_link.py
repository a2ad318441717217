"""The connection between the supervisor of a server and a process of it: both ask, and both answer."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from penstock.core.errors import PenstockError

_log = logging.getLogger("penstock.web")

#: How long (s) an answer is waited for.
_TIMEOUT = 10.0

#: What a process does when it is asked: from a value to its answer.
Act = Callable[[Any], Awaitable[Any]]


class _LinkMessage(msgspec.Struct, array_like=True):
    number: int
    what: str  # "": the answer of the request with this number; "!": its error
    value: Any = None


class ProcessLink:
    """One end of the connection. `acts`: what the other end may ask for, by name."""

    def __init__(self, end: socket.socket, acts: Mapping[str, Act]) -> None:
        self._end = end
        self._acts = acts
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Make the connection usable in the running event loop."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._end)

    async def run(self) -> None:
        """Answer the other end until it closes the connection."""
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            raise RuntimeError("call connect() first")
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                message = msgspec.msgpack.decode(await reader.readexactly(size), type=_LinkMessage)
                if message.what in ("", "!"):
                    self._answered(message)
                    continue
                task = asyncio.get_running_loop().create_task(self._act(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(PenstockError("the other process has ended"))

    def close(self) -> None:
        """Close the connection."""
        if self._writer is None:
            self._end.close()
        else:
            self._writer.close()

    async def ask(self, what: str, value: Any = None, timeout: float = _TIMEOUT) -> Any:
        """Ask the other end, and return its answer. Raises PenstockError, also after `timeout` (s)."""
        self._numbers += 1
        number = self._numbers
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(_LinkMessage(number, what, value))
            async with asyncio.timeout(timeout):
                return await self._asked[number]
        except TimeoutError:
            raise PenstockError(f"no answer within {timeout:g} s") from None
        finally:
            del self._asked[number]

    def _answered(self, message: _LinkMessage) -> None:
        waiting = self._asked.get(message.number)
        if waiting is None or waiting.done():
            return
        if message.what:
            waiting.set_exception(PenstockError(str(message.value)))
        else:
            waiting.set_result(message.value)

    async def _act(self, message: _LinkMessage) -> None:
        try:
            answer = _LinkMessage(message.number, "", await self._acts[message.what](message.value))
        except Exception as error:  # noqa: BLE001  # boundary: the one who asked gets the error
            if not isinstance(error, PenstockError):
                _log.exception("%s failed", message.what)
            answer = _LinkMessage(message.number, "!", str(error))
        self._send(answer)

    def _send(self, message: _LinkMessage) -> None:
        if self._writer is None or self._writer.is_closing():
            raise PenstockError("the other process has ended")
        data = msgspec.msgpack.encode(message)
        self._writer.write(len(data).to_bytes(4, "big") + data)


class Siblings:
    """All processes of a server, as one of them sees them. Without a `link`, there is only this one."""

    def __init__(self, acts: Mapping[str, Act], link: ProcessLink | None = None) -> None:
        self._acts = acts
        self._link = link

    async def ask_all(self, what: str, value: Any = None) -> list[Any]:
        """Ask each process, this one included; returns their answers.

        Raises PenstockError with the first error, after all have answered.
        """
        if self._link is None:
            return [await self._acts[what](value)]
        answers: list[Any] = await self._link.ask("all", [what, value])
        return answers

    async def keep(self, state: Any) -> None:
        """Have the supervisor pass this on to processes that start later. Raises PenstockError."""
        if self._link is not None:
            await self._link.ask("keep", state)
