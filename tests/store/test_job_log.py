"""The log of a job: lines stored with it in rows, bounded, and removed with it."""

from __future__ import annotations

from penstock.core.job import Job, State
from penstock.stores.contract import Store
from penstock.stores.job_log import (
    LINES_KEPT,
    LOG_BYTES,
    LONGEST_LINE,
    JobLog,
    LogLine,
    lines_of,
    shortened,
    store_logs,
)
from tests.store.facts import AGAIN, LEASE, add, end, gone, new, running, take_one


def log_of(*texts: str) -> JobLog:
    log = JobLog()
    for n, text in enumerate(texts):
        log.append(LogLine(n, text))
    return log


async def stored(store: Store, job: Job) -> list[str]:
    return [line.text for line in lines_of(await store.steps(job.ref))]


async def test_lines_are_kept_in_their_order_over_attempts(store: Store) -> None:
    job = await running(store)
    log = log_of("a", "b")
    await store_logs(store, [(job.lease, log)], LEASE)
    assert not log.waits
    log.append(LogLine(2, "c"))
    await store_logs(store, [(job.lease, log)], LEASE)
    await end(store, job, AGAIN)
    again = await take_one(store)
    await store_logs(store, [(again.lease, log_of("d"))], LEASE)
    assert await stored(store, job) == ["a", "b", "c", "d"]
    assert [line.at for line in lines_of(await store.steps(job.ref))] == [0, 1, 2, 0]
    await end(store, again)
    await store.delete([job.ref])
    assert await gone(store, job)
    assert await stored(store, job) == []


async def test_two_threads_that_store_the_same_lines_store_them_once(store: Store) -> None:
    job = await running(store)
    twice = log_of("a", "b")
    twice.count([])
    first, kept = twice.row()
    await store_logs(store, [(job.lease, twice)], LEASE)
    twice.stored(first, kept)
    twice.append(LogLine(2, "c"))
    late = log_of("a", "b", "c")  # its reply was lost, and more lines have come since
    await store_logs(store, [(job.lease, late)], LEASE)
    assert await stored(store, job) == ["a", "b", "c"]


async def test_the_log_of_a_job_is_bounded(store: Store) -> None:
    job, other = await running(store), await running(store)
    many, large = log_of(*["x"] * (LINES_KEPT + 50)), log_of(*["y" * LONGEST_LINE] * 50)
    await store_logs(store, [(job.lease, many), (other.lease, large)], LEASE)
    assert not many.waits
    assert not large.waits
    lines, rows = await stored(store, job), await stored(store, other)
    assert len(lines) == LINES_KEPT
    assert "full" in lines[-1]
    assert sum(map(len, rows)) <= LOG_BYTES + 100
    assert "full" in rows[-1]
    many.append(LogLine(0, "late"))
    await store_logs(store, [(job.lease, many)], LEASE)
    assert await stored(store, job) == lines


async def test_a_lost_lease_logs_nothing(store: Store) -> None:
    job = await running(store)
    await end(store, job, AGAIN)
    await add(store, new())
    log = log_of("late")
    await store_logs(store, [(job.lease, log)], LEASE)
    assert not log.waits
    assert await stored(store, job) == []
    assert job.state is State.RUNNING


def test_a_long_line_is_cut() -> None:
    assert shortened("a" * LONGEST_LINE) == "a" * LONGEST_LINE
    for text in ("a" * (LONGEST_LINE + 1), "ü" * LONGEST_LINE, "\ud800" * 9_000):
        cut = shortened(text)
        assert cut.endswith("…")
        assert LONGEST_LINE - 5 <= len(cut.encode()) <= LONGEST_LINE
