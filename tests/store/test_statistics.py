"""Statistics that workers report, by queue, task and period; and groups of errors."""

from __future__ import annotations

import pytest

from penstock.core.clock import ManualClock
from penstock.core.stats import TaskStats, quantile
from penstock.stores.contract import (
    MOST_ERROR_GROUPS,
    MOST_STATS_TASKS,
    ErrorCount,
    ErrorGroup,
    Resolution,
    StatsReport,
    StatsRow,
    Store,
    TaskCount,
)
from tests.store.facts import DAY, HOUR, MINUTE, OpenStore, new

NOON = 1_700_000_000_000 // DAY * DAY + DAY // 2
MINUTES, HOURS, DAYS = Resolution


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock, which stands still at the start of a minute, hour and half-day."""
    return ManualClock(NOON)


def stats(done: int = 1, *, wait: int = 70, run: int = 100, **facts: int) -> TaskStats:
    """The statistics of some attempts, all of which have their times in these buckets."""
    return TaskStats(done, done, waited=9 * done, ran=7 * done, waits=[wait, done], runs=[run, done], **facts)


async def report(
    store: Store,
    number: int,
    *errors: ErrorCount,
    queue: str = "default",
    source: str = "w1",
    **tasks: TaskStats,
) -> bool:
    """Report these statistics by task."""
    counts = [TaskCount(task, one) for task, one in tasks.items()]
    (stored,) = await store.add_stats([StatsReport(queue, source, number, counts, errors)])
    return stored


async def rows(store: Store, resolution: Resolution = MINUTES, **only: str) -> list[StatsRow]:
    return (await store.read_stats(resolution, span=resolution.length * resolution.kept, **only)).rows


def failed(message: str, *, task: str = "t", job: str = "j", count: int = 1) -> ErrorCount:
    return ErrorCount(f"{task}/{message}", task, "ValueError", message, count, job)


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    """A store with two queues."""
    store = open_store()
    await store.enqueue([new(), new(queue="mail")])
    return store


# ── tasks ──


async def test_reports_of_all_sources_add_up(store: Store) -> None:
    assert await report(store, 1, t=stats(3, failed=1), u=stats())
    assert await report(store, 1, source="w2", t=stats(2, wait=69, retried=1))
    assert await report(store, 2, t=stats(1, wait=71, run=5, dead=1))
    expected = TaskStats(6, 6, 1, 1, 1, 54, 42, [69, 2, 70, 3, 71, 1], [5, 1, 100, 5])
    for resolution in Resolution:
        assert await rows(store, resolution) == [
            StatsRow("default", "t", NOON, expected)
            if resolution is not DAYS
            else StatsRow("default", "t", NOON - DAY // 2, expected),
            StatsRow("default", "u", NOON if resolution is not DAYS else NOON - DAY // 2, stats()),
        ]


async def test_a_repeated_report_counts_once(store: Store) -> None:
    for _ in range(2):
        assert await report(store, 7, failed("x"), t=stats())
    assert await report(store, 6, t=stats())
    assert [row.stats for row in await rows(store)] == [stats()]
    assert [group.count for group in await store.read_errors()] == [1]
    assert await report(store, 7, queue="mail", t=stats()), "another queue"
    assert len(await rows(store)) == 2


async def test_large_numbers_stay_exact(store: Store) -> None:
    most = 2**52
    await report(store, 1, t=TaskStats(waited=most, ran=3_000_000_000, runs=[200, 2**33]))
    await report(store, 2, t=TaskStats(waited=1, runs=[200, 1]))
    (row,) = await rows(store)
    assert row.stats == TaskStats(waited=most + 1, ran=3_000_000_000, runs=[200, 2**33 + 1])


async def test_statistics_are_read_by_queue_and_task(store: Store) -> None:
    await report(store, 1, t=stats(), u=stats())
    await report(store, 2, queue="mail", t=stats())
    assert [(row.queue, row.task) for row in await rows(store)] == [
        ("default", "t"),
        ("default", "u"),
        ("mail", "t"),
    ]
    assert [(row.queue, row.task) for row in await rows(store, task="t")] == [("default", "t"), ("mail", "t")]
    assert [(row.queue, row.task) for row in await rows(store, queue="mail", task="t")] == [("mail", "t")]
    assert await rows(store, queue="nowhere") == await rows(store, task="none") == []


async def test_periods_follow_each_other_and_are_removed(store: Store, clock: ManualClock) -> None:
    await report(store, 1, t=stats())
    clock.advance(MINUTE)
    await report(store, 2, t=stats(2))
    assert [(row.at, row.stats.started) for row in await rows(store)] == [(NOON, 1), (NOON + MINUTE, 2)]
    assert [row.stats.started for row in await rows(store, HOURS)] == [3]
    page = await store.read_stats(MINUTES, span=MINUTE // 2)
    assert [row.at for row in page.rows] == [NOON, NOON + MINUTE], "the periods that the span touches"
    assert page.now == clock.now()
    clock.advance(118 * MINUTE)
    assert [row.at for row in await rows(store)] == [NOON, NOON + MINUTE]
    clock.advance(MINUTE)
    assert [row.at for row in await rows(store)] == [NOON + MINUTE]
    clock.advance(96 * HOUR)
    await report(store, 3, t=stats(4))
    assert [row.stats.started for row in await rows(store, HOURS)] == [4]
    assert [row.stats.started for row in await rows(store, DAYS)] == [3, 4]
    clock.advance(90 * DAY)
    await report(store, 4, t=stats(5))
    for resolution in Resolution:
        assert [row.stats.started for row in await rows(store, resolution)] == [5]


async def test_periods_of_a_clock_that_was_set_back_are_not_shown(store: Store, clock: ManualClock) -> None:
    clock.advance(200 * DAY)
    await report(store, 1, t=stats(5))
    clock.set_wall(NOON)
    assert [await rows(store, resolution) for resolution in Resolution] == [[], [], []]
    await report(store, 2, t=stats())
    for resolution in Resolution:
        assert [row.stats.started for row in await rows(store, resolution)] == [1]


async def test_tasks_beyond_the_most_are_counted_together(store: Store) -> None:
    names = [f"task{n:03}" for n in range(MOST_STATS_TASKS + 5)]
    await report(store, 1, **{name: stats() for name in names})
    await report(store, 2, task000=stats(), task204=stats())
    found = {row.task: row.stats.started for row in await rows(store)}
    assert len(found) == MOST_STATS_TASKS + 1
    assert (found["task000"], found["other"]) == (2, 6)


async def test_a_queue_that_is_gone_has_no_statistics(store: Store) -> None:
    await report(store, 1, failed("x"), queue="mail", t=stats())
    await report(store, 2, failed("x"), queue="nowhere", t=stats())
    assert [row.queue for row in await rows(store)] == ["mail"]
    await store.delete([job.ref for job in (await store.list_jobs(queue="mail")).jobs])
    assert await store.drop("mail")
    assert await report(store, 3, failed("x"), queue="mail", t=stats())
    await store.enqueue([new(queue="mail")])
    assert await rows(store) == await store.read_errors() == []


async def test_namespaces_have_statistics_of_their_own(store: Store, open_store: OpenStore) -> None:
    other = open_store(namespace="other")
    await other.enqueue([new()])
    await report(store, 1, failed("x"), t=stats())
    assert await rows(other) == await other.read_errors() == []
    await report(other, 1, t=stats(5))
    assert [row.stats.started for row in await rows(store)] == [1]


async def test_percentiles_are_those_of_all_attempts(store: Store) -> None:
    await report(store, 1, t=stats(98, run=139))
    await report(store, 2, t=stats(2, run=185))
    (row,) = await rows(store)
    assert quantile(row.stats.runs, 0.5) == pytest.approx(1.0, rel=0.05)
    assert quantile(row.stats.runs, 0.99) == pytest.approx(100.0, rel=0.05)


# ── errors ──


async def test_errors_are_counted_by_group(store: Store, clock: ManualClock) -> None:
    await report(store, 1, failed("no <n>", job="a", count=2), failed("no", task="u"))
    clock.advance(HOUR)
    await report(store, 2, failed("no <n>", job="b", count=3))
    late, early = await store.read_errors()
    assert (late.task, late.kind, late.message) == ("t", "ValueError", "no <n>")
    assert (late.count, late.first, late.last, late.job) == (5, NOON, NOON + HOUR, "b")
    assert (early.task, early.count, early.first, early.last) == ("u", 1, NOON, NOON)
    assert await store.read_errors(task="u") == await store.read_errors(queue="default", task="u") == [early]
    assert await store.read_errors(queue="mail") == []


async def test_groups_of_errors_are_removed_after_some_time(store: Store, clock: ManualClock) -> None:
    await report(store, 1, failed("old"))
    clock.advance(90 * DAY)
    assert await store.read_errors() == []
    await report(store, 2, failed("new"))
    assert [group.message for group in await store.read_errors()] == ["new"]


async def test_the_oldest_of_too_many_groups_is_counted_under_other(store: Store, clock: ManualClock) -> None:
    await report(store, 1, failed("first", count=3), failed("second", count=4))
    for n in range(2, 12):
        clock.advance(1_000)
        some = [failed(f"{n}/{m}") for m in range(MOST_ERROR_GROUPS // 10)]
        await report(store, n, *some)
    found = {group.message: group for group in await store.read_errors()}
    assert len(found) == MOST_ERROR_GROUPS + 1
    assert "first" not in found
    assert "second" not in found
    assert found[""] == ErrorGroup("default", "", "other", "", "", 7, NOON, NOON, "j")


# ── sizes ──


async def test_the_size_of_a_queue_is_estimated(store: Store) -> None:
    await store.enqueue([new(payload=b"[]" + b" " * 2_000) for _ in range(300)])
    sizes = {one.queue: one for one in await store.queue_sizes()}
    assert sizes.keys() == {"default", "mail"}
    assert 600_000 < sizes["default"].bytes < 1_500_000
    assert 0 < sizes["mail"].bytes < 5_000
    assert (sizes["default"].sampled, sizes["mail"].sampled) == (True, False)
    assert await store.queue_sizes(["mail", "nowhere"]) == [sizes["mail"]]
