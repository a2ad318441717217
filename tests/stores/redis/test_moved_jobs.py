"""A job that is moved to a queue of another server of a Cluster is neither lost nor doubled, whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core.changes import moved_spec
from penstock.core.job import Job, Ref, State
from penstock.stores.contract import EnqueueStatus, JobMove
from penstock.stores.redis.isolation import call_each
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.verbs import changing, delivering
from tests import servers
from tests.store.facts import add, end, gone, ids, in_state, new, take, take_one, the

THERE = "green"


@pytest.fixture
def cluster(prefix: str) -> Iterator[RedisStore]:
    made = RedisStore(f"{servers.SHARED_CLUSTER.get().url}?prefix={prefix}")
    yield made
    made.close()


async def move(store: RedisStore, job: Job) -> EnqueueStatus | None:
    (answer,) = await store.move_jobs([JobMove(job, moved_spec(job, THERE), job.errors, job.checkpoint)])
    return None if answer is None else answer.status


async def noted(store: RedisStore, patched: pytest.MonkeyPatch) -> Job:
    """A job whose mover died after the removal, before the delivery."""
    job = await in_state(store, State.RETRYABLE)
    with patched.context() as patch:
        patch.setattr(changing, "deliver", lambda *_: iter(()))
        assert await move(store, job) is EnqueueStatus.NEW
    assert await gone(store, job)
    assert await gone(store, Ref(THERE, job.id))
    return job


async def test_a_prune_delivers_a_job_whose_mover_died(
    cluster: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await noted(cluster, monkeypatch)
    assert not await cluster.drop("default"), "the queue still has the note"
    await cluster.settings(THERE, closed=True)
    await cluster.prune()
    now = await the(cluster, Ref(THERE, job.id))
    assert (now.state, now.run_at, now.attempt) == (State.SCHEDULED, job.run_at, 1)
    assert [one.message for one in now.errors] == ["no luck"]
    await cluster.delete([now.ref])
    await cluster.prune()
    assert await gone(cluster, now)
    assert await cluster.drop("default")


async def test_a_delivered_job_is_not_delivered_again(
    cluster: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(["read", "enqueue", "remove"])

    def dying(context: Any, those: Any) -> Any:
        if next(calls) == "remove":
            raise KeyboardInterrupt
        return (yield from call_each(context, those))

    await add(cluster, new("moved"))
    job = await the(cluster, Ref("default", "moved"))
    with monkeypatch.context() as patch:
        patch.setattr(delivering, "call_each", dying)
        with pytest.raises(KeyboardInterrupt):
            await move(cluster, job)
    await end(cluster, await take_one(cluster, THERE))
    await cluster.delete([Ref(THERE, "moved")])
    await cluster.prune()  # finds the note
    assert await gone(cluster, Ref(THERE, "moved"))
    assert await take(cluster, 9, THERE) == []
    assert await cluster.drop("default")


async def test_a_job_whose_id_was_taken_meanwhile_waits_until_it_is_free(
    cluster: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await noted(cluster, monkeypatch)
    await add(cluster, new(job.id, queue=THERE, payload=b'"another"'))
    await cluster.prune()
    assert (await the(cluster, Ref(THERE, job.id))).spec.payload == b'"another"'
    assert ids(await take(cluster, 9, THERE)) == [job.id]
    await cluster.delete([Ref(THERE, job.id)], running=True)
    await cluster.prune()
    assert (await the(cluster, Ref(THERE, job.id))).spec.payload == job.spec.payload
