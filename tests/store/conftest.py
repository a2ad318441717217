"""Every test here runs against every store: what it asserts is a promise of the seam."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.store import Store
from penstock.stores.memory import MemoryStore
from penstock.stores.sqlite import SqliteStore
from tests.store.facts import OpenStore


def _memory(home: Path, namespace: str, clock: ManualClock) -> Store:
    return MemoryStore(str(home), namespace=namespace, clock=clock)


def _sqlite(home: Path, namespace: str, clock: ManualClock) -> Store:
    return SqliteStore(home / "jobs.db", namespace=namespace, clock=clock)


#: A new store is entered here, and has to keep every promise of this folder.
STORES: dict[str, Callable[[Path, str, ManualClock], Store]] = {"memory": _memory, "sqlite": _sqlite}


@pytest.fixture(params=sorted(STORES))
def kind(request: pytest.FixtureRequest) -> str:
    """Which store is under test."""
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock. It stands still until a test moves it."""
    return ManualClock()


@pytest.fixture
def home() -> Iterator[Path]:
    """Where the data of one test lies: in memory where the machine has such a file system."""
    shared = Path("/dev/shm")
    parent = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"penstock-{uuid.uuid4().hex[:8]}-", dir=parent))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def open_store(kind: str, clock: ManualClock, home: Path) -> Iterator[OpenStore]:
    """Opens one more store object over the data of this test."""
    opened: list[Store] = []

    def open_one(*, namespace: str = "") -> Store:
        opened.append(STORES[kind](home, namespace, clock))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()
