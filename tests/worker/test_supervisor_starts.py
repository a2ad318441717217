"""The supervisor of workers, while the system has no room for another process."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from penstock.config import load
from penstock.worker.orders import Orders
from penstock.worker.supervisor import worker_process
from penstock.worker.supervisor.supervisor import Supervisor


async def test_a_worker_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor("shop:app", load().config, None, burst=False)
    pauses: list[float] = []

    def fail(_: Orders) -> Any:
        raise BlockingIOError(errno.EAGAIN, "no room")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        supervisor._stopping = len(pauses) == 3

    monkeypatch.setattr(worker_process, "spawn", fail)
    monkeypatch.setattr(supervisor, "_unless_stopped", pause)
    await supervisor._keep_alive()
    assert pauses == [0.2, 0.4, 0.8]
    assert supervisor._children == []
