"""`penstock serve` as a real program, for tests of its options and signals."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.web.wire import Client

__all__ = ["SOON", "Program", "run_to_end", "running", "until_true"]

SRC = Path(__file__).parents[2] / "src"
SOON = 30.0


class Program:
    """A running server. `facts`: what it printed when it was ready; `log`: its stderr."""

    def __init__(self, process: Process, facts: dict[str, Any], log: Path) -> None:
        self.process = process
        self.facts = facts
        self.log = log
        self.port: int = facts["port"]
        self._clients: list[Client] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def children(self) -> list[int]:
        """The pids of its server processes."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def client(self, **options: Any) -> Client:
        self._clients.append(Client(self.port, **options))
        return self._clients[-1]

    def admin(self, **options: Any) -> Client:
        self._clients.append(Client(self.facts["admin_port"], **options))
        return self._clients[-1]

    async def logged(self, text: str) -> None:
        """Wait until the log has this text."""
        await until_true(lambda: text in self.log.read_text())

    async def ended(self) -> int:
        """Wait for its end."""
        async with asyncio.timeout(SOON):
            return await self.process.wait()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


async def until_true(true: Callable[[], bool]) -> None:
    """Wait until another process has done something, which no event shows."""
    async with asyncio.timeout(SOON):
        while not true():
            await asyncio.sleep(0.01)


def _command(options: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "penstock", "serve", "--lmstfy", *options]


def _environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**env, "PYTHONPATH": str(SRC)}


@asynccontextmanager
async def running(home: Path, *options: str, with_url: bool = True) -> AsyncIterator[Program]:
    """The server, ready; stopped at the end, if it still runs. Its store is a file in `home`."""
    ports = [] if "--port" in options else ["--port", "0", "--admin-port", "0"]
    url = ["--url", f"sqlite:///{home}/jobs.db"] if with_url else []
    given = ("--json", *ports, *url, *options)
    log = home / f"log-{len(list(home.glob('log-*')))}"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *_command(given), cwd=home, env=_environment(), stdout=PIPE, stderr=stderr
        )
    assert process.stdout is not None
    shown = await process.stdout.readline()
    assert shown, log.read_text()
    program = Program(process, json.loads(shown), log)
    try:
        yield program
    finally:
        await program.close()
        with suppress(ProcessLookupError):
            process.terminate()
        await program.ended()


async def run_to_end(home: Path, *options: str) -> tuple[int, str]:
    """A server that refuses to start: its exit code, and what it says."""
    process = await asyncio.create_subprocess_exec(
        *_command(options), cwd=home, env=_environment(), stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(SOON):
        _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()
