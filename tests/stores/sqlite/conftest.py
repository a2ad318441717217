"""Fixtures of the tests of the SQLite store: files, stores on them, jobs, and other processes."""

from __future__ import annotations

import itertools
import multiprocessing
import sqlite3
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest

from penstock.core.ids import mint_token
from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settlement, Share
from penstock.stores.sqlite import SqliteStore

OpenStore = Callable[..., SqliteStore]
DONE = Transition(State.COMPLETED)
KEPT = Transition(State.COMPLETED, keep=60_000)

_numbers = itertools.count(1)


def new(id: str | None = None, **facts: Any) -> NewJob:
    return NewJob(id or f"job-{next(_numbers)}", facts.pop("task", "t"), **facts)


def token() -> str:
    return mint_token()  # several processes play here


async def take(store: SqliteStore, n: int = 1, queue: str = "default", worker: str = "w") -> list[Job]:
    share = Share(queue, n, n)
    return (await store.fetch([share], limit=n, lease=15_000, worker=worker, token=token())).jobs


def settlements(jobs: list[Job], transition: Transition = DONE) -> list[Settlement]:
    return [Settlement(job.lease, transition) for job in jobs]


def checked(path: Path) -> str:
    """What SQLite says of the file's health."""
    cx = sqlite3.connect(path)
    try:
        (answer,) = cx.execute("PRAGMA integrity_check").fetchone()
    finally:
        cx.close()
    return str(answer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[OpenStore]:
    """Opens one more store object on the file, by default."""
    opened: list[SqliteStore] = []

    def open_one(where: Path = path, **options: Any) -> SqliteStore:
        opened.append(SqliteStore(where, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> SqliteStore:
    return open_store()


@pytest.fixture
def spawn() -> SpawnContext:
    """Processes that share nothing with this one."""
    return multiprocessing.get_context("spawn")
