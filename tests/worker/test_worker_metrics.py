"""What a worker process counts, and how its supervisor reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock import App, Worker
from penstock.core.job import Job, Lease, NewJob, State
from penstock.core.lifecycle import Transition, completed
from penstock.stores.contract import Settled, Settlement
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.metrics_page import MetricsPage
from penstock.worker.plan import Plan
from penstock.worker.setup import Supervision
from penstock.worker.supervisor.operator_listener import figures_text
from penstock.worker.worker_metrics import (
    TIME_BOUNDS,
    WorkerFigures,
    WorkerMetrics,
    merge_figures,
    read_figures,
)
from penstock.worker.worker_stats import AttemptRecorder
from tests.prometheus_text import samples


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    made = MetricsPage.create()
    yield made
    made.close()


def leased(task: str, *, took: float = 0.0, waited: int = 0, started: bool = True) -> LeasedJob:
    plan = Plan(task, lambda: None, "async", lambda _: ((), {}), None, (), {}, ("", ""))
    job = Job(NewJob(id="1", queue="q", task=task, payload=b""), State.RUNNING, run_at=10_000)
    return LeasedJob(job, plan, 0.0, 10_000 + waited, started=float(started), took=took)


def settle(metrics: WorkerMetrics, *ends: tuple[LeasedJob, Transition, Settled]) -> None:
    lease = Lease("q", "1", "token", 0)
    settlements = [Settlement(lease, move) for _, move, _ in ends]
    recorder = AttemptRecorder(metrics)
    recorder.settled([one for one, _, _ in ends], settlements, [answer for _, _, answer in ends])
    recorder.fold()


# --- the page -----------------------------------------------------------------------------------


def test_a_page_has_what_was_written_last(page: MetricsPage) -> None:
    assert page.read() == b""
    for content in (b"first", b"second", b"", b"third" * 1_000):
        page.write(content)
        assert page.read() == content


def test_a_torn_write_leaves_the_content_before(page: MetricsPage) -> None:
    page.write(b"first")
    page.write(b"second")
    os.pwrite(page.fileno(), b"garbage", 16)  # the second write is in the place at the begin
    assert page.read() == b"first"


def test_what_is_too_large_for_the_page_is_left_out(page: MetricsPage) -> None:
    page.write(b"small")
    page.write(b"x" * 5_000_000)
    assert page.read() == b"small"


# --- counting -----------------------------------------------------------------------------------


def test_a_batch_of_one_task_is_counted_like_its_jobs_alone(page: MetricsPage) -> None:
    done = (completed(0), Settled.APPLIED)
    jobs = [leased("a", took=took, waited=waited) for took, waited in ((0.0005, 0), (0.3, 40), (9_999, 7))]
    together, alone = WorkerMetrics(page), WorkerMetrics(page)
    settle(together, *((job, *done) for job in jobs))
    for job in jobs:
        settle(alone, (job, *done))
    assert together.figures == alone.figures
    figures = together.figures.tasks["a"]
    assert figures.outcomes == {"completed": 3}
    assert figures.durations.buckets[0] == figures.durations.buckets[-1] == 1
    assert figures.durations.buckets[TIME_BOUNDS.index(0.5)] == 1
    assert figures.waits.total == 47


def test_outcomes_are_counted_by_task(page: MetricsPage) -> None:
    metrics = WorkerMetrics(page)
    settle(
        metrics,
        (leased("a"), completed(0), Settled.APPLIED),
        (leased("a"), Transition(State.RETRYABLE), Settled.APPLIED),
        (leased("b"), Transition(State.DEAD), Settled.APPLIED),
        (leased("b"), Transition(State.SCHEDULED, throttle=1_000), Settled.APPLIED),
        (leased("b", started=False), Transition(State.AVAILABLE), Settled.APPLIED),
        (leased("b", started=False), Transition(State.CANCELLED), Settled.APPLIED),
        (leased("b", started=False), Transition(State.DEAD), Settled.APPLIED),
        (leased("b"), completed(0), Settled.STALE),
        (leased("b"), completed(0), Settled.UNKNOWN),
        (leased("b", started=False), Transition(State.AVAILABLE), Settled.STALE),
    )
    a, b = metrics.figures.tasks["a"], metrics.figures.tasks["b"]
    assert a.outcomes == {"completed": 1, "retried": 1}
    assert b.outcomes == {"dead": 2, "throttled": 1, "released": 1, "cancelled": 1}
    assert sum(b.durations.buckets) == 2, "what was not started has no duration"
    assert metrics.figures.leases_lost == 1


def test_the_number_of_tasks_is_bounded(page: MetricsPage) -> None:
    metrics = WorkerMetrics(page)
    for n in range(1_000):
        settle(metrics, (leased(f"task{n}"), completed(0), Settled.APPLIED))
    tasks = metrics.figures.tasks
    assert len(tasks) == 201
    assert tasks["other"].outcomes == {"completed": 800}


def test_figures_of_processes_add_up(page: MetricsPage) -> None:
    metrics = WorkerMetrics(page)
    settle(metrics, (leased("a", took=0.2), completed(0), Settled.APPLIED))
    metrics.called("fetch", 0.0004, False)
    metrics.called("fetch", 3.0, True)
    metrics.reclaimed()
    metrics.stop()
    both = WorkerFigures()
    merge_figures(both, read_figures(page))
    merge_figures(both, metrics.figures)
    found = samples("".join(figures_text(both)))
    assert found['penstock_worker_attempts_total{task="a",outcome="completed"}'] == 2
    assert found['penstock_job_duration_seconds_bucket{task="a",le="0.25"}'] == 2
    assert found['penstock_job_duration_seconds_sum{task="a"}'] == 0.4
    assert found['penstock_store_call_duration_seconds_count{verb="fetch"}'] == 4
    assert found['penstock_store_call_errors_total{verb="fetch"}'] == 2
    assert found["penstock_jobs_reclaimed_total"] == 2


async def test_a_worker_writes_its_figures(page: MetricsPage) -> None:
    app = App("memory://worker-metrics")

    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    await app.aenqueue_many([double.job(n) for n in range(20)])
    await Worker(app, burst=True, supervision=Supervision(metrics=page)).run()
    figures = read_figures(page)
    assert figures.tasks["double"].outcomes == {"completed": 20}
    assert sum(figures.calls["fetch"].buckets) > 0
    assert app.store.sync.queues()[0].counts == {State.COMPLETED: 20}
    app.close()
