"""A worker reports the risks of its store once, at its start, without delaying jobs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from penstock import App, StoreError, Worker
from penstock.stores.contract import Checkup, Finding, Level, Request
from penstock.stores.memory import MemoryStore
from penstock.testing import FaultyStore


class Judged(MemoryStore):
    """A store with something to say of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def ask(self, request: Request[Any]) -> Any:
        if not isinstance(request, Checkup):
            return await super().ask(request)
        self.asked.set()
        return [
            Finding(Level.FINE, "server", "new"),
            Finding(Level.WARNING, "clock", "it is late", "use NTP"),
            Finding(Level.ERROR, "persistence", "nothing is written"),
        ]


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(r.levelno, r.message) for r in caplog.records if r.message.startswith("memory://")]


async def test_what_is_not_fine_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = App(store=Judged())
    await asyncio.wait_for(Worker(app, ["q"], burst=True).run(), 60)
    assert said(caplog) == [
        (logging.WARNING, "memory://: clock: it is late; use NTP"),
        (logging.ERROR, "memory://: persistence: nothing is written"),
    ]


async def test_a_store_that_does_not_answer_is_asked_again_and_holds_up_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Judged()
    faulty = FaultyStore(store)
    faulty.fail("checkup", times=2)
    app = App(store=faulty.store)

    @app.task
    async def work() -> int:
        return 5

    handle = await work.aenqueue()
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    assert await handle.aresult(60) == 5
    await asyncio.wait_for(store.asked.wait(), 60)
    worker.stop()
    await asyncio.wait_for(running, 60)
    assert len(said(caplog)) == 2
    assert faulty.calls["checkup"] == 3


async def test_a_store_that_does_not_let_itself_be_looked_at_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faulty = FaultyStore(Judged())
    faulty.fail("checkup", error=StoreError("INFO is forbidden"))
    await asyncio.wait_for(Worker(App(store=faulty.store), ["q"], burst=True).run(), 60)
    assert said(caplog) == [
        (
            logging.WARNING,
            "memory://: the store refused the checkup, so its settings are unknown: INFO is forbidden",
        )
    ]
    assert faulty.calls["checkup"] == 1
