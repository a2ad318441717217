"""docs/metrics.md lists exactly the metrics that are served."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.core.clock import ManualClock
from penstock.stores.memory import MemoryStore
from penstock.web.store_metrics import process_metrics
from penstock.worker.supervisor.operator_listener import figures_text, process_text
from penstock.worker.worker_metrics import TaskFigures, Times, WorkerFigures
from tests.prometheus_text import metric_names
from tests.web.conftest import Served

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def documented() -> set[str]:
    return set(re.findall(r"^\| `([a-z_]+)` \|", PAGE.read_text("utf-8"), re.M))


def served_by_a_worker() -> set[str]:
    times = Times([0] * 15)
    figures = WorkerFigures(
        tasks={"t": TaskFigures(outcomes={"completed": 1})}, calls={"fetch": times}, failed_calls={"fetch": 1}
    )
    parts = [*figures_text(figures), *process_text([], slots=1, deaths=0), *process_metrics()]
    return metric_names("".join(parts))


async def served_by_a_server(clock: ManualClock) -> set[str]:
    store = MemoryStore("metrics-page", clock=clock)
    one = Served(store, clock, need_tokens=True, fixed_tokens={"ns": frozenset({"token"})}, asynq_names=True)
    await one.start()
    try:
        client = one.client("token")
        await one.admin().request("PUT", "/token/ns/token/limit", b'{"write":2,"interval":60}')
        for _ in range(3):
            await client.put("/api/ns/q", b"x")
        job = (await client.get("/api/ns/q?ttr=60")).json
        await client.delete(f"/api/ns/q/job/{job['job_id']}")
        one.service.backends["default"].metrics.called("fetch", 0.1, True)
        return metric_names((await one.admin().get("/metrics")).body.decode())
    finally:
        await one.stop()
        store.close()


async def test_the_page_lists_what_is_served(clock: ManualClock) -> None:
    assert documented() == served_by_a_worker() | await served_by_a_server(clock)
