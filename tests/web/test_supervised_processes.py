"""The supervisor of server processes, while one of them is dead, hangs or cannot be started."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.core.errors import PenstockError
from penstock.web import processes
from penstock.web.processes import ServerProcesses
from tests.web.programs import SOON, until_true

pytestmark = pytest.mark.timeout(300)

CHILD = """
import asyncio, os
from penstock.web.process_link import ProcessLink
from penstock.web.processes import inherited_listeners

async def main():
    async def answer(_):
        return os.getpid()
    control, _ = inherited_listeners()
    link = ProcessLink(control, {"counted": answer, "reload": answer})
    await link.connect()
    running = asyncio.ensure_future(link.run())
    await link.ask("ready")
    await running

asyncio.run(main())
"""


@asynccontextmanager
async def two() -> AsyncIterator[ServerProcesses]:
    """Two processes that serve."""
    ready = asyncio.Event()
    command = [sys.executable, "-c", CHILD]
    supervisor = ServerProcesses(command, [{}, {}], grace=1.0, on_ready=ready.set)
    running = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(SOON):
        await ready.wait()
    try:
        yield supervisor
    finally:
        supervisor._stop()
        async with asyncio.timeout(SOON):
            await running


async def test_a_process_that_hangs_is_left_out_of_counts_and_named_by_other_acts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_MAY_MISS", {"counted": 0.2})
    monkeypatch.setattr(processes, "_ANSWER_WITHIN", 0.2)
    async with two() as supervisor:
        first, second = (supervisor._running[position].pid for position in (0, 1))
        os.kill(second, signal.SIGSTOP)
        try:
            assert await supervisor.ask_all(["counted", None]) == [first]
            with pytest.raises(PenstockError, match=f"server process {second}: no answer"):
                await supervisor.ask_all(["reload", None])
        finally:
            os.kill(second, signal.SIGCONT)


async def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = 0

    class NoRoom(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            nonlocal failed
            failed += 1
            if failed < 3:
                raise BlockingIOError(errno.EAGAIN, "no room")
            super().__init__(*args, **options)

    async with two() as supervisor:
        first, second = supervisor._running[0], supervisor._running[1]
        monkeypatch.setattr(processes.subprocess, "Popen", NoRoom)
        os.kill(second.pid, signal.SIGKILL)
        await until_true(lambda: not second.ready)
        for act in ("counted", "reload"):
            assert first.pid in await supervisor.ask_all([act, None])
        await until_true(lambda: supervisor._running[1] is not second and supervisor._running[1].ready)
        assert len(await supervisor.ask_all(["reload", None])) == 2
        assert failed == 3
