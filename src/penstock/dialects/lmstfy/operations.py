"""What operators change while the server runs, in all of its processes: the access log, the settings."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.core.errors import PenstockError
from penstock.dialects.lmstfy.bodies import error, json_text, plain_reply
from penstock.dialects.lmstfy.parameters import RefusedError
from penstock.web.access_log import AccessLog, AccessLogSwitch
from penstock.web.process_link import Act, Siblings

__all__ = ["Operations"]

#: Reads settings and certificates again; returns what needs a restart. Raises PenstockError.
Reload = Callable[[], Awaitable[list[str]]]

_SWITCH = {"enable": True, "disable": False}


class Operations:
    """The routes of operators. `siblings` are all processes of this server.

    `counted`: the text of the metrics that this process counts itself.
    """

    def __init__(self, access_logs: Sequence[AccessLog], counted: Callable[[], str]) -> None:
        self.access_log = AccessLogSwitch(access_logs)
        self._counted = counted
        self.reload: Reload = _nothing
        self.siblings = Siblings(self.acts)

    @property
    def acts(self) -> dict[str, Act]:
        """What one process does when a request at another one asks for it."""
        return {"reload": self._reload, "access_log": self._switch, "counted": self._count}

    def adopt(self, kept: Any) -> None:
        """Use what operators have changed in processes of this server that started earlier; None: nothing."""
        if kept is not None:
            self.access_log.adopt(kept)

    async def counted_by_others(self) -> list[str]:
        """The metrics that the other processes count."""
        answers: list[tuple[int, str]] = await self.siblings.ask_all("counted")
        return [text for pid, text in answers if pid != os.getpid()]

    async def access_log_shown(self) -> bytes:
        """Whether requests are logged."""
        return _status(self.access_log.enabled)

    async def access_log_switched(self, status: str) -> bytes:
        """Switch the access log of all processes, until their end. 503: one of them does not answer."""
        enabled = _SWITCH.get(status)
        if enabled is None:
            raise RefusedError(400, "invalid status")
        try:
            await self.siblings.ask_all("access_log", enabled)
        except PenstockError as wrong:
            return error(503, str(wrong))
        return _status(enabled)

    async def reloaded(self) -> bytes:
        """Reload settings and certificates in all processes. 400: they are wrong, and the old ones stay."""
        try:
            notes = await self.siblings.ask_all("reload")
        except PenstockError as wrong:
            return error(400, str(wrong))
        said = list(dict.fromkeys(note for some in notes for note in some))
        return plain_reply(200, json_text({"notes": said, "status": "reloaded"}))

    async def _count(self, _: Any) -> tuple[int, str]:
        return os.getpid(), self._counted()

    async def _reload(self, _: Any) -> list[str]:
        notes = await self.reload()
        await self.siblings.keep(self.access_log.state)
        return notes

    async def _switch(self, enabled: Any) -> None:
        self.access_log.switch(bool(enabled))
        await self.siblings.keep(self.access_log.state)


def _status(enabled: bool) -> bytes:
    return plain_reply(200, json_text({"status": "enabled" if enabled else "disabled"}))


async def _nothing() -> list[str]:
    return []
