"""SIGSTOP past the lease, on Redis: what a woken worker had fetched ahead is begun by nobody twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.ids import mint
from penstock.core.job import State
from tests.servers import RedisServer, remove_keys
from tests.system.redis.conftest import RedisPlace

_LEASE = {"PENSTOCK_LEASE": "1500ms", "PENSTOCK_HEARTBEAT": "400ms"}


@pytest.fixture
def place(redis: RedisServer, tmp_path: Path) -> Iterator[RedisPlace]:
    prefix = f"stopped-{mint()}"
    made = RedisPlace(tmp_path, f"redis://127.0.0.1:{redis.port}/0?prefix={prefix}")
    try:
        yield made
    finally:
        made.close()
        remove_keys([redis], having=prefix)


def test_what_a_woken_worker_had_not_begun_is_begun_by_nobody_twice(place: RedisPlace) -> None:
    stale = place.lone(concurrency=1, PENSTOCK_SLOT_WAIT="60s", **_LEASE)
    tasks = place.tasks
    place.until_ended(tasks.app.enqueue_many([tasks.quick.job(n) for n in range(300)]))
    calls = [tasks.quick.job(n) for n in range(300)]
    handles = tasks.app.enqueue_many([*calls[:50], tasks.block.job(0.7), *calls[50:]])
    place.until_started(1, task="block")
    stale.signal(signal.SIGSTOP)
    in_hand = place.counts()[State.RUNNING]
    place.lone(concurrency=1, **_LEASE)
    place.until_ended(handles)
    stale.signal(signal.SIGCONT)
    place.until(lambda: "its late outcome changed nothing" in stale.log, "the stale worker notices")
    place.until(lambda: not place.counts().get(State.RUNNING), "nothing is left in its hands")
    assert in_hand > 1, "it had fetched nothing ahead: the test shows nothing"
    assert {job.state for job in place.jobs(handles)} == {State.COMPLETED}
    runs = place.runs()
    twice = [handle.id for handle in handles[51:] if runs[handle.id] > 1]
    assert not twice, f"{len(twice)} job(s) that it had not begun ran on both"
