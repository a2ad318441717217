"""Every verb of the contract is implemented in every store and every wrapper.

`docs/architecture.md` lists the places under "Add a verb"; a test here names a missing one. Otherwise a
wrapper would pass a new verb through unnoticed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ConfigError
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import Store, SyncStore
from penstock.stores.encrypted import encrypted_store
from penstock.stores.facade import StoreFacade, SyncFacade
from penstock.stores.memory import MemoryStore
from penstock.stores.redis.store import RedisStore
from penstock.stores.sqlite import SqliteStore
from penstock.testing import FaultyStore
from penstock.verify.crash_points import CrashPoints
from penstock.verify.ledger.recording.recorded_store import recorded_store

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"


# --- the verbs ----------------------------------------------------------------------------------


def methods_of(contract: type) -> dict[str, Callable[..., Any]]:
    """Every method that a protocol, or one that it is made of, asks for."""
    pages = [page for page in contract.__mro__ if getattr(page, "_is_protocol", False)]
    return {
        name: member
        for page in pages
        for name, member in vars(page).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }


#: Methods that ask the store nothing.
NO_VERBS = {"close", "in_namespace"}
VERBS = {name: verb for name, verb in methods_of(Store).items() if name not in NO_VERBS}
SYNC_VERBS = methods_of(SyncStore)

#: `stream_ends` answers bit by bit and has no one moment at which it is done; `wait_for_end` has one.
WITHOUT_CRASH_POINTS = {"stream_ends"}

#: Every store waits in a way of its own, in both doors.
WAITS = {"wait_for_end", "stream_ends"}

#: These change no job, or only what the ledger has from another verb; the ledger lets them pass.
NOT_IN_THE_LEDGER = {
    *(
        "get",
        "wait_for_end",
        "stream_ends",
        "list_jobs",
        "list_next",
        "search_jobs",
        "find",
        "queues",
        "parked",
        "stats",
        "partition",
        "batches",
        "workers",
    ),
    *("extend", "promote", "prune", "drop", "flush_batch", "checkup", "announce", "retire"),
    *("entries", "put_entries", "pause_entries", "delete_entries"),
    *("record_steps", "steps", "await_signals", "send_signals"),
    *("documents", "document_versions", "change_documents", "append_log", "read_log", "take_quota"),
    *("add_stats", "read_stats", "read_errors", "sample_depths", "read_depths", "queue_sizes"),
    *("put_flow", "add_to_flow", "get_flows", "flow_nodes", "list_flows", "change_flow", "advance_flows"),
}
NOT_IN_THE_LEDGER_SYNC = {
    *("find", "get", "wait_for_end", "stream_ends", "queues"),
    *("put_flow", "add_to_flow", "get_flows", "flow_nodes", "change_flow", "advance_flows"),
}
NOT_IN_THE_LEDGER_SYNC |= {"record_steps", "steps", "await_signals", "send_signals"}


# --- the places ---------------------------------------------------------------------------------


def stores(folder: Path) -> Iterator[tuple[str, Store]]:
    """One store object of each kind; none of them is asked for anything."""
    yield "src/penstock/stores/memory", MemoryStore()
    yield "src/penstock/stores/sqlite", SqliteStore(str(folder / "jobs.db"))
    yield "src/penstock/stores/redis", RedisStore("redis://localhost:1")
    yield "src/penstock/stores/encrypted", encrypted_store(MemoryStore(), Cipher(Keyring([bytes(32)])))


def lacking(kind: type, verbs: dict[str, Callable[..., Any]]) -> list[str]:
    """The verbs that a class does not have, or has with other arguments than the contract."""
    found = []
    for name, verb in verbs.items():
        own = inspect.getattr_static(kind, name, None)
        if not inspect.isfunction(own) or own is verb:
            found.append(name)
        elif shape_of(own) != shape_of(verb):
            found.append(f"{name}{inspect.signature(own)}")
    return found


def shape_of(verb: Callable[..., Any]) -> list[tuple[str, Any, bool]]:
    """The arguments of a verb: name, kind, and whether it may be left out."""
    arguments = inspect.signature(verb).parameters.values()
    return [(one.name, one.kind, one.default is not one.empty) for one in arguments]


def without_facade(verbs: Iterable[str], facade: type, kinds: list[type]) -> list[str]:
    """The verbs that are neither written once for all stores nor by each store for itself."""
    return [
        name for name in verbs if name not in vars(facade) and not all(name in vars(kind) for kind in kinds)
    ]


def refused(verbs: dict[str, Callable[..., Any]], use: Callable[[str], object]) -> list[str]:
    """The verbs that a double of a store says it does not know."""
    found = []
    for name in verbs:
        try:
            use(name)
        except ConfigError:
            found.append(name)
    return found


def called_in(folder: Path) -> set[str]:
    """The names of all methods that are called in the tests of a folder."""
    trees = (ast.parse(path.read_text("utf-8")) for path in folder.glob("*.py"))
    return {
        node.func.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


class FactWriter:
    self_recorded = ()

    def write_all(self, facts: object) -> None:
        raise AssertionError(facts)


def forgotten(
    verbs: dict[str, Callable[..., Any]], sync_verbs: dict[str, Callable[..., Any]], folder: Path
) -> dict[str, list[str]]:
    """Which verbs are missing, by place."""
    found: dict[str, list[str]] = {}
    for place, store in stores(folder):
        with closing(store):
            found[place] = lacking(type(store), verbs)
            found[f"{place} (sync)"] = lacking(type(store.sync), sync_verbs)
    found["src/penstock/stores/facade.py"] = [
        *without_facade(verbs, StoreFacade, [MemoryStore, SqliteStore, RedisStore]),
        *(name for name in sync_verbs if name not in WAITS and name not in vars(SyncFacade)),
    ]
    noted = recorded_store(MemoryStore(), FactWriter())
    found["src/penstock/verify/ledger/recording/recorded_store.py"] = [
        *(verbs.keys() - set(dir(type(noted))) - NOT_IN_THE_LEDGER),
        *(sync_verbs.keys() - set(dir(type(noted.sync))) - NOT_IN_THE_LEDGER_SYNC),
    ]
    found["src/penstock/testing/faults.py"] = refused(verbs | sync_verbs, FaultyStore(MemoryStore()).fail)
    points = CrashPoints(MemoryStore())
    found["src/penstock/verify/crash_points.py"] = [
        name for name in refused(verbs, points.calls) if name not in WITHOUT_CRASH_POINTS
    ]
    found["tests/store"] = sorted((verbs.keys() | sync_verbs.keys()) - called_in(ROOT / "tests" / "store"))
    return found


# --- the tests ----------------------------------------------------------------------------------


def test_every_verb_of_the_contract_is_in_every_place(tmp_path: Path) -> None:
    missing = {place: names for place, names in forgotten(VERBS, SYNC_VERBS, tmp_path).items() if names}
    told = "\n  ".join(f"{place}: {', '.join(names)}" for place, names in missing.items())
    if missing:
        pytest.fail(f"Verbs that these places lack, or have with other arguments:\n  {told}", pytrace=False)


def test_a_verb_that_is_only_in_the_contract_is_missed_in_every_place(tmp_path: Path) -> None:
    def polish(self: object) -> None: ...

    added = {"polish": polish}
    for place, names in forgotten(VERBS | added, SYNC_VERBS | added, tmp_path).items():
        assert "polish" in names, place


def test_what_the_ledger_lets_pass_is_named_only_while_it_is_a_verb() -> None:
    assert set(VERBS) >= NOT_IN_THE_LEDGER | WITHOUT_CRASH_POINTS
    assert set(SYNC_VERBS) >= NOT_IN_THE_LEDGER_SYNC


def test_the_page_of_the_architecture_lists_every_place(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    for place in forgotten({}, {}, tmp_path):
        assert place.removesuffix(" (sync)").removeprefix("src/penstock/") in page, place
