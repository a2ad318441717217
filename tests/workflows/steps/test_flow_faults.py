"""Durable steps where something goes wrong: middleware, failures, branches that run on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.job import State
from penstock.workflows import current_sync_flow
from tests.workflows.steps.conftest import Running, until


@pytest.fixture
def ran() -> list[Any]:
    """What the tasks of the test have done, in order."""
    return []


# ── middleware ──


@pytest.mark.parametrize("raises", [False, True])
async def test_middleware_cannot_swallow_a_suspension_of_a_thread(running: Running, raises: bool) -> None:
    app = running.app

    @app.around_attempt
    async def swallow(job: Any, call: Any) -> Any:
        try:
            return await call()
        except BaseException:
            if raises:
                raise ValueError("metrics are down") from None
            return "swallowed"

    @app.task(max_attempts=1)
    def work() -> str:
        current_sync_flow().wait_for("go", timeout="1h")
        return "done"

    await running.start()
    handle = await work.aenqueue()
    await until(lambda: handle.astatus(), State.SUSPENDED)
    await app.asignal("go")
    assert await handle.aresult(timeout=10) == "done"
    await running.stop()
