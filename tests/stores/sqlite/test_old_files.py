"""Files of an earlier version: migrated when they are opened, with every job, key, limit and place."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Job, Ref, State
from penstock.core.stats import QueueDepth
from penstock.stores.contract import Resolution, Share
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.file import MIGRATIONS
from tests.store.facts import HOUR, MINUTE, add, new

#: A file that schema 8 wrote at this instant, as SQL.
OLD = Path(__file__).parent / "old" / "schema_8.sql"
WRITTEN_AT = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(WRITTEN_AT)


@pytest.fixture
def store(path: Path, clock: ManualClock) -> SqliteStore:
    """The old file, opened by this version."""
    cx = sqlite3.connect(path)
    cx.executescript(OLD.read_text())
    cx.close()
    return SqliteStore(path, clock=clock)


async def fetched(store: SqliteStore, queue: str, limit: int = 10) -> list[str]:
    found = await store.fetch([Share(queue, limit, limit)], limit=limit, lease=HOUR, worker="w", token=queue)
    return [job.id for job in found.jobs]


async def one(store: SqliteStore, queue: str, id: str) -> Job:
    (job,) = await store.get([Ref(queue, id)])
    assert job is not None
    return job


async def test_an_old_file_has_the_latest_version_and_all_jobs_in_their_states(store, path) -> None:
    counts = {info.name: {s.value: n for s, n in info.counts.items() if n} for info in await store.queues()}
    assert counts == {
        "plain": {"available": 2, "scheduled": 1},
        "partitions": {"available": 1, "waiting": 2},
        "rates": {"completed": 1, "waiting": 1},
        "held": {"waiting": 1},
        "fair": {"available": 4},
        "batches": {"available": 1, "collecting": 4},
        "limited": {"available": 1},
    }
    cx = sqlite3.connect(path)
    assert cx.execute("SELECT value FROM penstock_meta WHERE key = 'schema'").fetchone() == (
        str(len(MIGRATIONS)),
    )
    names = " ".join(str(sql) for (sql,) in cx.execute("SELECT sql FROM sqlite_master"))
    cx.close()
    assert not [word for word in ("lane", "turn", "tied", "gkey", "held", "tat ", "group") if word in names]


async def test_a_partition_goes_on_where_it_was(store) -> None:
    info = await store.partition(Ref("partitions", "p2"))
    assert info is not None
    assert (info.key, info.waiting, info.before, [job.id for job in info.admitted]) == ("k", 2, 1, ["p0"])
    assert await fetched(store, "partitions") == ["p0"]


async def test_the_rate_and_the_throttle_of_a_partition_are_kept(store, clock) -> None:
    assert await fetched(store, "rates") == await fetched(store, "held") == []
    clock.advance(HOUR)
    await store.promote(["rates", "held"], limit=10)
    assert await fetched(store, "rates") == ["r1"]
    assert await fetched(store, "held") == ["throttled0"]


async def test_the_fair_order_among_tenants_is_kept(store) -> None:
    assert await fetched(store, "fair") == ["a0", "b0", "a1", "a2"]


async def test_batches_collect_on_and_run(store, clock) -> None:
    (batch,) = await store.batches("batches")
    assert (batch.task, batch.key, batch.size, batch.due) == ("t", "collecting", 2, WRITTEN_AT + HOUR)
    assert await fetched(store, "batches") == ["n0.batch"]
    assert (await one(store, "batches", "n1")).batch == "n0.batch"
    clock.advance(HOUR)
    await store.promote(["batches"], limit=10)
    assert (await one(store, "batches", "m0.batch")).members == ("m0", "m1")


async def test_limits_and_the_throttle_of_a_queue_are_kept(store, clock) -> None:
    (info,) = [info for info in await store.queues() if info.name == "limited"]
    assert (info.limits.max_running, info.throttled_until) == (3, WRITTEN_AT + HOUR)
    assert await fetched(store, "limited") == []
    clock.advance(HOUR)
    assert await fetched(store, "limited") == ["l"]


async def test_a_unique_key_is_still_held(store) -> None:
    job = await one(store, "plain", "unique")
    (answer,) = await store.enqueue(
        [job.spec.__class__("again", "t", b"[]", "plain", unique=job.spec.unique)]
    )
    assert (answer.status.value, answer.id) == ("duplicate", "unique")
    assert job.state is State.AVAILABLE


async def test_samples_from_before_their_totals_are_read_and_get_one(store, path, clock) -> None:
    await store.sample_depths()
    cx = sqlite3.connect(path)
    cx.execute("UPDATE penstock_depth SET total = NULL")
    cx.commit()
    cx.close()
    for number, seen in ((0, None), (1, 1)):
        (row,) = (await store.read_depths(Resolution.DAY, span=HOUR, queue="limited")).rows
        assert row.depth == QueueDepth(1 + number, 1 + number, 0, 0, 1, seen)
        clock.advance(MINUTE)
        await store.sample_depths()
        await add(store, new(queue="limited"))
