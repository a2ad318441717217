"""The encrypted store names every verb of the contract, so that no verb is passed through by accident."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from penstock.core.job import Job, NewJob, Ref
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import Store, SyncStore
from penstock.stores.encrypted import encrypted_store, unreadable_check
from penstock.stores.facade import VERBS, VerbTable
from penstock.stores.memory import MemoryStore


@pytest.fixture
def store() -> Iterator[Store]:
    store = encrypted_store(MemoryStore("every-verb"), Cipher(Keyring([bytes(32)])))
    yield store
    store.close()


def public(contract: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(contract) if not name.startswith("_")}


def test_each_verb_of_the_contract_has_its_own_method(store: Store) -> None:
    assert public(Store) <= public(type(store))
    assert public(SyncStore) <= public(type(store.sync))


def test_its_methods_take_what_those_of_the_contract_take(store: Store) -> None:
    for contract, made in ((Store, type(store)), (SyncStore, type(store.sync))):
        for name in public(contract) - {"url", "sync"}:
            wanted = inspect.signature(getattr(contract, name)).parameters
            has = inspect.signature(getattr(made, name)).parameters
            assert list(has) == list(wanted), name


def test_a_table_that_lacks_a_verb_cannot_be_made() -> None:
    """So a new verb stops the encrypted store until somebody has said what of it is encrypted."""
    fields = dataclasses.fields(VerbTable)
    assert {field.name for field in fields} == set(VERBS) - {"wait", "wait_for_end", "stream_ends", "checkup"}
    for field in fields:
        assert field.default is dataclasses.MISSING, field.name
        assert field.default_factory is dataclasses.MISSING, field.name
    with pytest.raises(TypeError, match="tick"):
        VerbTable(**{field.name: None for field in fields if field.name != "tick"})  # type: ignore[arg-type]


def test_an_unlisted_verb_is_not_passed_through(store: Store) -> None:
    class Newer(MemoryStore):
        async def store_in_clear(self) -> None:
            raise AssertionError

    assert not hasattr(encrypted_store(Newer("newer"), Cipher(Keyring([bytes(32)]))), "store_in_clear")
    assert not hasattr(type(store), "__getattr__")
    assert not hasattr(type(store.sync), "__getattr__")


async def test_one_job_that_opens_wrongly_is_closed_and_the_others_of_a_list_are_open() -> None:
    class Damaged(MemoryStore):
        async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
            good, bad = await super().get(refs)
            assert bad is not None
            return [good, replace(bad, spec=replace(bad.spec, payload=None), result=404)]

    store = encrypted_store(Damaged("opens-wrongly"), Cipher(Keyring([bytes(32)])))
    await store.enqueue([NewJob(id, "t", payload=b"[1]") for id in ("good", "bad")])
    good, bad = await store.get([Ref("default", "good"), Ref("default", "bad")])
    assert good is not None
    assert good.spec.payload == b"[1]"
    assert bad is not None
    assert (unreadable_check(store)(bad) or "").startswith("it cannot be opened")
