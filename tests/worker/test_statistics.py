"""A worker reports the attempts of its tasks, now and then and when it stops, each once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.core.stats import TaskStats
from penstock.errors import StoreCorrupt
from penstock.stores.contract import Resolution, StatsReport, StatsRow, Store
from penstock.testing import FaultyStore
from penstock.worker import worker_stats
from penstock.worker.worker_stats import AttemptRecorder, QueueRecord, StatsReporter
from tests.worker.conftest import at_work, in_a_burst, until


async def rows(store: Store) -> list[StatsRow]:
    return (await store.read_stats(Resolution.MINUTE, span=3_600_000)).rows


async def tasks(app: App) -> None:
    """Seven jobs of two tasks: four attempts of them fail."""

    @app.task(name="ok", retention=None)
    async def ok(n: int) -> None:
        await asyncio.sleep(0.001)

    @app.task(name="bad", queue="mail", max_attempts=2, retry="0s")
    def bad(n: int) -> None:
        raise ValueError(f"no user {n}")

    await app.aenqueue_many([ok.job(n) for n in range(5)])
    await app.aenqueue_many([bad.job(n) for n in range(2)])


async def test_a_worker_reports_what_it_did_when_it_stops(app: App) -> None:
    await tasks(app)
    await in_a_burst(app)
    found = {(row.queue, row.task): row.stats for row in await rows(app.store)}
    good, bad = found.pop(("default", "ok")), found.pop(("mail", "bad"))
    assert not found
    assert (good.started, good.processed, good.failed, good.dead) == (5, 5, 0, 0)
    assert (bad.started, bad.processed, bad.failed, bad.retried, bad.dead) == (4, 4, 4, 2, 2)
    for stats in (good, bad):
        assert sum(stats.runs[1::2]) == sum(stats.waits[1::2]) == stats.started
    assert good.ran >= 5_000, "five times a millisecond, in µs"
    totals = {one.name: (one.processed, one.failed) for one in await app.store.stats()}
    assert totals == {"default": (5, 0), "mail": (4, 4)}
    (group,) = await app.store.read_errors()
    assert (group.queue, group.task, group.kind, group.message) == (
        "mail",
        "bad",
        "ValueError",
        "no user <n>",
    )
    assert group.count == 4
    assert (await app.store.find(group.job))[0].state is State.DEAD


async def test_a_worker_reports_while_it_runs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stats, "_EVERY", 0.02)
    await tasks(app)
    async with at_work(app):
        async with asyncio.timeout(60):
            while sum(row.stats.processed for row in await rows(app.store)) < 9:
                await asyncio.sleep(0.01)
        before = await rows(app.store)
    assert sum(row.stats.processed for row in await rows(app.store)) == 9
    assert before


async def test_a_report_whose_answer_was_lost_counts_once(
    app: App, faults: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_stats, "_EVERY", 0.02)
    faults.lose_reply("add_stats", times=2)
    await tasks(app)
    async with at_work(app):
        await until(lambda: faults.calls["add_stats"] > 2, "the report is repeated")
    assert sum(row.stats.processed for row in await rows(app.store)) == 9
    assert [group.count for group in await app.store.read_errors()] == [4]


async def test_what_the_store_cannot_take_is_dropped(
    app: App, faults: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    faults.fail("add_stats", error=StoreCorrupt("a key of another type"))
    await tasks(app)
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        await in_a_burst(app)
    assert "statistics of some seconds are lost: a key of another type" in caplog.text
    assert await rows(app.store) == []
    assert {queue.name for queue in await app.store.queues()} == {"default", "mail"}


async def test_an_idle_worker_reports_nothing(app: App, faults: FaultyStore) -> None:
    app.task(name="never")(lambda: None)
    await in_a_burst(app)
    assert faults.calls["add_stats"] == 0


class Calls:
    """A store that notes the reports of each call; those of queues that are away are not taken."""

    def __init__(self) -> None:
        self.made: list[list[tuple[str, int]]] = []
        self.away: set[str] = set()

    async def add_stats(self, reports: Sequence[StatsReport]) -> list[bool]:
        self.made.append([(one.queue, one.number) for one in reports])
        return [one.queue not in self.away for one in reports]


def reporter_of(calls: Calls, tasks: dict[str, int]) -> StatsReporter:
    """A reporter that has to report of so many tasks of each queue."""
    recorder = AttemptRecorder()
    for queue, number in tasks.items():
        record = recorder._queues[queue] = QueueRecord()
        for n in range(number):
            record.add(f"task {n}", TaskStats(started=1))
    return StatsReporter(cast(Store, calls), recorder)


async def test_a_call_has_few_reports_and_one_of_each_queue() -> None:
    calls = Calls()
    await reporter_of(calls, {"a": 25, **{f"q{n}": 1 for n in range(5)}}).report()
    numbers = [number for call in calls.made for _, number in call]
    assert sorted(numbers) == list(range(1, 9)), "each is sent once"
    assert [number for call in calls.made for queue, number in call if queue == "a"] == [1, 2, 3]
    assert all(len({queue for queue, _ in call}) == len(call) <= 4 for call in calls.made)


async def test_a_report_that_is_not_taken_delays_those_of_its_queue_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = Calls()
    calls.away = {"a"}
    reporter = reporter_of(calls, {"a": 15, "b": 15})
    await reporter.report()
    assert calls.made == [[("a", 1), ("b", 3)], [("b", 4)]]
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        await reporter.report_last()
    assert calls.made[2:] == [[("a", 1)], [("a", 1)]], "a second try"
    assert "the last statistics of this worker are lost: a part of the store is unreachable" in caplog.text
    calls.away.clear()
    await reporter.report()
    assert calls.made[4:] == [[("a", 1)], [("a", 2)]]
