"""The measured tasks, and their app."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.counters import count, instant
from penstock import App, current_job

__all__ = ["Tasks"]


class Boom(Exception):
    """Raised by failing jobs."""


class Tasks:
    """An app on this URL with all tasks, whose names do not depend on the importing module."""

    def __init__(self, url: str, **options: Any) -> None:
        self.app = app = App(url, **options)

        @app.task(name="noop")
        async def noop() -> None:
            count()

        @app.task(name="noop_thread", run_in="thread")
        def noop_thread() -> None:
            count()

        @app.task(name="nap")
        async def nap(seconds: float) -> None:
            """Count at the start, then wait."""
            count()
            await asyncio.sleep(seconds)

        @app.task(name="nap_thread", run_in="thread")
        def nap_thread(seconds: float) -> None:
            count()
            time.sleep(seconds)

        @app.task(name="busy")
        async def busy(us: int) -> None:
            """Use the CPU for this time."""
            until = time.thread_time_ns() + us * 1_000
            while time.thread_time_ns() < until:
                pass
            count()

        @app.task(name="blob")
        async def blob(text: str) -> None:
            count()

        @app.task(name="stamp")
        async def stamp(sent_ns: int) -> None:
            """How long after `sent_ns`, of a clock that all processes of a host share, it began."""
            instant(sent_ns, time.monotonic_ns())

        @app.task(name="late")
        async def late(due_ms: int) -> None:
            """How long after `due_ms`, of the wall clock, it began."""
            instant(due_ms * 1_000_000, time.time_ns())

        @app.task(name="echo")
        async def echo(value: int) -> int:
            return value

        @app.task(name="fail", max_attempts=2, retry="10ms")
        async def fail(always: bool) -> None:
            """Fail once or always; count at the end."""
            last = current_job().attempt == 2
            if last:
                count()
            if always or not last:
                raise Boom("as it was asked to")

        self.noop = noop
        self.noop_thread = noop_thread
        self.nap = nap
        self.nap_thread = nap_thread
        self.busy = busy
        self.blob = blob
        self.stamp = stamp
        self.late = late
        self.echo = echo
        self.fail = fail
