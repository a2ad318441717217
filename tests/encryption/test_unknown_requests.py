"""The encrypted store knows every request of the contract, and passes no other one through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.job import NewJob, Ref
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import Get, Request, Store, StreamEnds, SyncRequest, requests
from penstock.stores.encrypted import encrypted_store, unreadable_check
from penstock.stores.encrypted.requests import PLANS
from penstock.stores.memory import MemoryStore


@pytest.fixture
def store() -> Iterator[Store]:
    store = encrypted_store(MemoryStore("every-verb"), Cipher(Keyring([bytes(32)])))
    yield store
    store.close()


def test_each_request_has_a_plan() -> None:
    """Its marks say what of it is encrypted; `test_marks.py` fails for a field without one."""
    assert {*PLANS, StreamEnds} == set(requests().values())


async def test_a_request_that_is_not_of_the_contract_is_refused(store: Store) -> None:
    class Newer(SyncRequest[None], frozen=True):
        """A request that the contract does not have."""

    with pytest.raises(KeyError):
        await store.ask(Newer())
    with pytest.raises(KeyError):
        store.sync.ask(Newer())


def test_an_unlisted_verb_is_not_passed_through(store: Store) -> None:
    class Newer(MemoryStore):
        async def store_in_clear(self) -> None:
            raise AssertionError

    assert not hasattr(encrypted_store(Newer("newer"), Cipher(Keyring([bytes(32)]))), "store_in_clear")
    assert not hasattr(type(store), "__getattr__")
    assert not hasattr(type(store.sync), "__getattr__")


async def test_one_job_that_opens_wrongly_is_closed_and_the_others_of_a_list_are_open() -> None:
    class Damaged(MemoryStore):
        async def ask(self, request: Request[Any]) -> Any:
            answer = await super().ask(request)
            if isinstance(request, Get):
                good, bad = answer
                return [good, replace(bad, spec=replace(bad.spec, payload=None), result=404)]
            return answer

    store = encrypted_store(Damaged("opens-wrongly"), Cipher(Keyring([bytes(32)])))
    await store.enqueue([NewJob(id, "t", payload=b"[1]") for id in ("good", "bad")])
    good, bad = await store.get([Ref("default", "good"), Ref("default", "bad")])
    assert good is not None
    assert good.spec.payload == b"[1]"
    assert bad is not None
    assert (unreadable_check(store)(bad) or "").startswith("it cannot be decrypted")
