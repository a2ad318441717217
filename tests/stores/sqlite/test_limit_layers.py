"""Limits that were stored before it was known who set them count as an operator's."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from penstock.core.limits import LimitChange, QueueLimits, Rate, limits_by_code
from penstock.stores.sqlite import SqliteStore


@pytest.mark.parametrize("stored", [None, b"no msgpack"])
async def test_limits_without_layers_are_an_operators(tmp_path: Path, stored: bytes | None) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    await store.settings("q", limits=LimitChange.of(max_running=7))
    with sqlite3.connect(path) as cx:
        cx.execute("UPDATE penstock_queue SET limit_layers = ? WHERE name = 'q'", (stored,))
    cx.close()
    (info,) = await store.queues()
    assert (info.limits, info.layers.source("max_running")) == (QueueLimits(max_running=7), "operator")
    info = await store.settings("q", limits=limits_by_code(max_running=3, rate="5/s"))
    assert info.limits == QueueLimits(max_running=7, rate=Rate.of("5/s"))
    assert [info.layers.source(name) for name in ("max_running", "rate")] == ["operator", "code"]
    store.close()
