"""SIGSTOP for longer than the lease, on Redis: a prefetched job of a resumed worker is not run twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.ids import mint
from tests.servers import RedisServer, remove_keys
from tests.system.conftest import begins_nothing_twice
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


def test_unstarted_jobs_of_a_resumed_worker_do_not_start_twice(place: RedisPlace) -> None:
    begins_nothing_twice(place, _LEASE)
