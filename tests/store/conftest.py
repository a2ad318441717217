"""The conformance suite: every test in this folder runs on every store."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import Store
from penstock.stores.encrypted import encrypted_store
from penstock.stores.memory import MemoryStore
from penstock.stores.memory.store import _runners as memory_runners
from penstock.stores.sqlite import SqliteStore
from tests import servers
from tests.oracle import OracleStore
from tests.sqlite_files import new_file
from tests.store.facts import TEST_FOLDER, OpenStore, key_prefix


def _memory(home: Path, namespace: str, clock: ManualClock) -> Store:
    return MemoryStore(str(home), namespace=namespace, clock=clock)


def _oracle(home: Path, namespace: str, clock: ManualClock) -> Store:
    return OracleStore(str(home), namespace=namespace, clock=clock)


def _sqlite(home: Path, namespace: str, clock: ManualClock) -> Store:
    return SqliteStore(new_file(home / "jobs.db", clock), namespace=namespace, clock=clock)


def _redis(home: Path, namespace: str, clock: ManualClock) -> Store:
    return _on_redis(servers.SHARED_REDIS.get().url, home, namespace, clock)


def _redis_cluster(home: Path, namespace: str, clock: ManualClock) -> Store:
    return _on_redis(servers.SHARED_CLUSTER.get().url, home, namespace, clock)


def _on_redis(url: str, home: Path, namespace: str, clock: ManualClock) -> Store:
    from penstock.stores.redis.store import RedisStore

    return RedisStore(f"{url}?prefix={key_prefix(home)}", namespace=namespace, clock=clock)


def _encrypted(home: Path, namespace: str, clock: ManualClock) -> Store:
    return encrypted_store(_memory(home, namespace, clock), Cipher(Keyring([bytes(32)])), namespace)


#: A new store is entered here, and has to keep every promise of this folder. It is called with the test's
#: home, a namespace and a clock; a server starts with the first store on it.
STORES: dict[str, Callable[[Path, str, ManualClock], Store]] = {
    "memory": _memory,
    "oracle": _oracle,
    "redis": _redis,
    "redis-cluster": _redis_cluster,
    "sqlite": _sqlite,
}
OPENED = {**STORES, "encrypted": _encrypted}


#: Modules whose tests pass data of jobs in or out: an encrypted store must behave as any other there.
ENCRYPTED = (
    "batches",
    "bulk_acts",
    "cancel_to_undo",
    "change_jobs",
    "complete",
    "depths",
    "discard",
    "documents",
    "edit_jobs",
    "extend",
    "fetch",
    "flows",
    "get",
    "in_namespace",
    "known_faults",
    "limit_layers",
    "move_jobs",
    "operator_acts",
)
ENCRYPTED += ("list_jobs", "list_next", "namespaces", "periodic", "reclaim", "settle", "stream_ends")
ENCRYPTED += ("fleet", "job_log", "search_jobs", "signals", "statistics", "steps")
ENCRYPTED += ("sync_verbs", "unique_rules", "wait", "wait_for_end", "why")
assert all((Path(__file__).parent / f"test_{name}.py").is_file() for name in ENCRYPTED)
#: Except these: an encrypted store keeps a hash of the unique key.
NOT_ENCRYPTED = ("test_an_entry_comes_back_as_it_was_put", "test_the_holder_gets_the_")
#: and its values are longer.
NOT_ENCRYPTED += ("test_a_job_remembers_a_bounded_number_of_bytes", "test_a_full_job_takes_no_wait")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "kind" in metafunc.fixturenames and "kind" not in chosen:
        module = metafunc.module.__name__.rpartition(".test_")[2]
        encrypts = module in ENCRYPTED and not metafunc.function.__name__.startswith(NOT_ENCRYPTED)
        metafunc.parametrize("kind", [*sorted(STORES), *(["encrypted"] if encrypts else [])], indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which store is under test."""
    if request.param == "redis-cluster":  # its servers are never away, and slow while others use the machine
        monkeypatch.setattr("penstock.stores.redis.wire.calls._BRIEF", 10.0)
    yield str(request.param)
    _tidy(str(request.param))


#: How many tests of each kind have ended since the last tidying.
_ended: Counter[str] = Counter()


def _tidy(kind: str) -> None:
    """Remove now and then what tests left on a shared server, before it slows down those that follow."""
    _ended[kind] += 1
    if _ended[kind] < 20:
        return
    _ended[kind] = 0
    if kind == "redis" and servers.SHARED_REDIS.started:
        servers.remove_keys([servers.SHARED_REDIS.started], having=TEST_FOLDER)
    elif kind == "redis-cluster" and servers.SHARED_CLUSTER.started:
        servers.remove_keys(servers.SHARED_CLUSTER.started.servers, having=TEST_FOLDER)


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock. It stands still until a test moves it."""
    return ManualClock()


@pytest.fixture
def home() -> Iterator[Path]:
    """Where the data of one test lies: in memory where the machine has such a file system."""
    shared = Path("/dev/shm")
    parent = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"{TEST_FOLDER}{uuid.uuid4().hex[:8]}-", dir=parent))
    yield path
    shutil.rmtree(path, ignore_errors=True)
    memory_runners.pop(str(path), None)  # else its jobs live as long as the process


@pytest.fixture
def open_store(kind: str, clock: ManualClock, home: Path) -> Iterator[OpenStore]:
    """Opens one more store object over the data of this test."""
    opened: list[Store] = []

    def open_one(*, namespace: str = "") -> Store:
        opened.append(OPENED[kind](home, namespace, clock))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()
