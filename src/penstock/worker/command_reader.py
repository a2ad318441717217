"""Reads and obeys the commands that operators send to this worker through the store."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.maintenance.service import Service
from penstock.stores.contract import Store
from penstock.stores.worker_commands import CommandChannel, CommandReply, WorkerCommand

__all__ = ["CommandReader", "Obedience"]

_log = logging.getLogger("penstock.worker")
#: The store wakes the reader (SETTINGS), but only one of several workers with the same store object. So each
#: looks this often (s) whether there are new commands, by one cheap read.
_SAFETY = 5.0


class Obedience(NamedTuple):
    """What a worker answers to a command, and what it does after the answer is stored; None: nothing more."""

    reply: CommandReply
    act: Callable[[], None] | None = None


class CommandReader(Service):
    """Obeys each command once. Woken by changes of settings, of which a command is one."""

    name = "command reader"

    def __init__(self, store: Store, worker: str, obey: Callable[[WorkerCommand], Obedience]) -> None:
        super().__init__()
        self._channel = CommandChannel(store)
        self._worker = worker
        self._obey = obey
        self._obeyed: deque[str] = deque(maxlen=1_000)
        self._version = 0

    async def tick(self) -> float:
        version = await self._channel.version()
        if version == self._version:
            return _SAFETY
        for sent, command in await self._channel.commands(self._worker):
            if sent.id in self._obeyed:  # its answer could not be stored
                continue
            self._obeyed.append(sent.id)
            reply, act = self._obey(command)
            _log.warning("worker %s: command %r from %s", self._worker, command.act.value, command.by or "?")
            try:
                await self._channel.answer(sent, reply)
            finally:
                if act is not None:
                    act()
        self._version = version
        return _SAFETY
