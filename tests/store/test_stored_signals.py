"""signals, forget_signals, signal_waiters, and signals that take the place of a stored one."""

from __future__ import annotations

from penstock.core.clock import ManualClock
from penstock.core.job import Ref
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import KeptSignal, SignalStatus, SignalWaiter, StepRecord, Store
from penstock.stores.encrypted import encrypted_store
from tests.store.facts import MINUTE, add, end, new, suspended, take, take_one
from tests.store.test_signals import received, send, wait


async def listed(store: Store, **facts: object) -> list[tuple[str, str, str | None]]:
    found = await store.signals(**facts)  # type: ignore[arg-type]
    return [(one.name, one.key, one.flow) for one in found]


async def test_stored_signals_are_listed_in_order(store: Store, clock: ManualClock) -> None:
    for name, key, flow in [("b", "1", None), ("a", "2", None), ("a", "1", "job"), ("a", "1", None)]:
        assert await send(store, name=name, key=key, flow=flow) is SignalStatus.STORED
    everything = [("a", "1", None), ("a", "1", "job"), ("a", "2", None), ("b", "1", None)]
    assert await listed(store) == everything
    assert await listed(store, name="a") == everything[:3]
    assert await listed(store, name="a", key="1") == everything[:2]
    assert await listed(store, limit=2) == everything[:2]
    assert await listed(store, after=("a", "1", ""), limit=2) == everything[1:3]
    assert await listed(store, after=("a", "1", "job")) == everything[2:]
    (one,) = await store.signals(name="b")
    assert one == KeptSignal("b", "1", None, b"data", clock.now(), clock.now() + 7 * 86_400_000)


async def test_what_is_over_or_received_is_not_listed(store: Store, clock: ManualClock) -> None:
    await send(store, key="short", keep=MINUTE)
    await send(store, key="7")
    await add(store, new("a"))
    assert await wait(store, await take_one(store)) == received()
    assert await listed(store) == [("packed", "short", None)]
    clock.advance(MINUTE + 1)
    assert await listed(store) == []
    assert await store.forget_signals([("packed", "short", None)]) == [False]


async def test_signals_are_forgotten(store: Store) -> None:
    await send(store)
    await send(store, flow="a")
    names = [("packed", "7", "a"), ("packed", "8", None), ("packed", "7", "a")]
    assert await store.forget_signals(names) == [True, False, False]
    assert await listed(store) == [("packed", "7", None)]
    await add(store, new("a"))
    assert await wait(store, await take_one(store)) == received()


async def test_a_signal_takes_the_place_of_a_stored_one(store: Store, clock: ManualClock) -> None:
    assert await send(store, replace=True) is SignalStatus.STORED
    clock.advance(MINUTE)
    assert await send(store, data=b"second") is SignalStatus.EXISTS
    assert await send(store, data=b"third", replace=True) is SignalStatus.REPLACED
    (one,) = await store.signals()
    assert (one.data, one.sent_at) == (b"third", clock.now())
    await add(store, new("a"))
    assert await wait(store, await take_one(store)) == received(b"third")


async def test_waiters_are_those_that_wait_now(store: Store) -> None:
    await add(store, *(new(id, queue=id) for id in ("a", "b", "c")), new("d", queue="a"))
    for id in ("a", "b", "c"):
        job = await take_one(store, id)
        await wait(store, job, step=f"step {id}")
        await end(store, job, suspended())
    other = await take_one(store, "a")
    await wait(store, other, key="8")
    waiters = {SignalWaiter(Ref(id, id), f"step {id}") for id in ("a", "b", "c")}
    assert set(await store.signal_waiters("packed", "7")) == waiters
    assert set(store.sync.signal_waiters("packed", "7")) == waiters
    assert len(await store.signal_waiters("packed", "7", limit=2)) == 2
    assert await store.signal_waiters("other", "7") == []
    await store.cancel([Ref("b", "b")])
    await send(store, flow="a")
    assert await store.signal_waiters("packed", "7") == [SignalWaiter(Ref("c", "c"), "step c")]
    assert len(await take(store, 1, "a")) == 1


async def test_waiters_tell_what_they_take(store: Store) -> None:
    closed = encrypted_store(store, Cipher(Keyring([bytes(32)])))
    await add(closed, new("a"))
    job = await take_one(closed)
    await wait(closed, job, step="!wait/packed=7")
    await closed.record_steps([StepRecord(job.lease, "!wait/packed=7!of", b"{}", 60_000)])
    await end(closed, job, suspended())
    waiter = SignalWaiter(job.ref, "!wait/packed=7", b"{}")
    assert await closed.signal_waiters("packed", "7") == [waiter]
    assert closed.sync.signal_waiters("packed", "7") == [waiter]
    assert [one.of for one in await store.signal_waiters("packed", "7")] != [b"{}"]


async def test_the_data_of_listed_signals_is_decrypted(store: Store) -> None:
    closed = encrypted_store(store, Cipher(Keyring([bytes(32)])))
    await send(closed, data=b"secret")
    assert [one.data for one in await closed.signals()] == [b"secret"]
    assert [one.data for one in await store.signals()] != [b"secret"]


async def test_a_signal_that_meets_an_ended_job_still_takes_the_place_of_a_stored_one(store: Store) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await send(store, data=b"first", flow="b")
    await wait(store, job)
    await end(store, job)
    assert await send(store, data=b"second") is SignalStatus.STORED
    await add(store, new("c"))
    other = await take_one(store)
    assert await wait(store, other) == received(b"second")
    await end(store, other)
    await send(store, data=b"third")
    await add(store, new("d"))
    await store.cancel([Ref("default", "d")])
    assert await send(store, data=b"fourth", replace=True) is SignalStatus.REPLACED
    (one,) = await store.signals(key="7", limit=1)
    assert one.data == b"fourth"
