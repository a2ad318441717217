"""A process that dies between the slot of the signals and the slot of a job loses no signal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import LARGEST_SIGNAL, RecordStatus, Signal, SignalStatus, SignalWait
from penstock.stores.redis.store import RedisStore
from penstock.stores.redis.verbs import signalling, stepping
from tests import servers
from tests.store.facts import LEASE, MINUTE, SECOND, add, end, new, suspended, take, take_one


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def prefix() -> str:
    """Of the keys of this test, on a server that all tests share."""
    return f"penstock-{uuid4().hex}"


@pytest.fixture(params=["redis", "cluster"])
def store(request: pytest.FixtureRequest, clock: ManualClock, prefix: str) -> Iterator[RedisStore]:
    server = servers.SHARED_REDIS if request.param == "redis" else servers.SHARED_CLUSTER
    store = RedisStore(f"{server.get().url}?prefix={prefix}", clock=clock)
    yield store
    store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Let this process die when it is about to deliver, or to confirm, a signal."""

    def at(step: str) -> None:
        deliver = signalling._refused

        def killed(*args: Any) -> Any:
            if step == "confirm":
                plan = deliver(*args)
                calls = next(plan)
                yield calls
            raise Killed

        monkeypatch.setattr(signalling, "_refused", killed)

    at.over = monkeypatch.undo  # type: ignore[attr-defined]
    return at


async def waiting(store: RedisStore) -> Ref:
    await add(store, new("a"))
    job = await take_one(store)
    await store.await_signals([SignalWait(job.lease, "packed", "packed", "7", LEASE)])
    await end(store, job, suspended())
    return job.ref


async def value(store: RedisStore, ref: Ref) -> bytes | None:
    (step,) = await store.steps(ref)
    return step.value


@pytest.mark.parametrize("step", ["deliver", "confirm"])
async def test_prune_repeats_a_delivery(store: RedisStore, clock: ManualClock, dies: Any, step: str) -> None:
    ref = await waiting(store)
    dies(step)
    with pytest.raises(Killed):
        await store.send_signals([Signal("packed", "7", b"data")])
    dies.over()
    clock.advance(2 * SECOND)
    await store.prune()
    assert await value(store, ref) == b"data"
    (job,) = await store.get([ref])
    assert job is not None
    assert job.state is State.AVAILABLE
    await end(store, await take_one(store), suspended())
    clock.advance(MINUTE)
    await store.prune()  # the delivery is confirmed: nothing wakes the job again
    (job,) = await store.get([ref])
    assert job is not None
    assert job.state is State.SUSPENDED


@pytest.mark.parametrize("step", ["deliver", "confirm"])
async def test_a_stored_signal_survives_the_death_of_its_receiver(
    store: RedisStore, clock: ManualClock, dies: Any, step: str
) -> None:
    await add(store, new("a"))
    job = await take_one(store)
    await store.send_signals([Signal("packed", "7", b"data")])
    wait = SignalWait(job.lease, "packed", "packed", "7", LEASE)
    dies(step)
    with pytest.raises(Killed):
        await store.await_signals([wait])
    dies.over()
    clock.advance(2 * SECOND)
    await store.prune()
    (answer,) = await store.await_signals([wait])
    assert (answer.status, answer.value) == (RecordStatus.EXISTS, b"data")


async def test_a_signal_whose_receiver_is_gone_goes_to_the_next(
    store: RedisStore, clock: ManualClock, dies: Any
) -> None:
    ref = await waiting(store)
    dies("deliver")
    with pytest.raises(Killed):
        await store.send_signals([Signal("packed", "7", b"data")])
    dies.over()
    await store.delete([ref])
    await add(store, new("b"))
    job = await take_one(store)
    await store.await_signals([SignalWait(job.lease, "packed", "packed", "7", LEASE)])
    clock.advance(2 * SECOND)
    await store.prune()
    assert await value(store, job.ref) == b"data"


async def test_old_waits_and_signals_are_removed(store: RedisStore, clock: ManualClock, prefix: str) -> None:
    ref = await waiting(store)
    await store.delete([ref])
    assert await store.send_signals([Signal("sent", "1", b"", keep=MINUTE)]) == [SignalStatus.STORED]
    clock.advance(8 * 24 * 60 * MINUTE)
    await store.prune()
    server = servers.SHARED_REDIS if not store.url.startswith("redis+cluster") else None
    if server is not None:
        import redis

        with redis.Redis.from_url(server.get().url) as client:
            assert not [key for key in client.scan_iter(f"{prefix}*signals*") if not key.endswith(b":number")]


async def test_steps_leave_no_keys_behind(store: RedisStore) -> None:
    ref = await waiting(store)
    await store.send_signals([Signal("packed", "7", b"data")])
    await end(store, await take_one(store), Transition(State.COMPLETED))
    assert await store.get([ref]) == [None]
    assert await store.steps(ref) == []


async def cancelled(store: RedisStore, n: int) -> None:
    """Cancel `n` jobs that wait for the same signal; half of them are deleted too."""
    await store.enqueue([new(f"gone{i}") for i in range(n)])
    jobs = await take(store, n)
    await store.await_signals([SignalWait(job.lease, "packed", "packed", "7", LEASE) for job in jobs])
    for job in jobs:
        await end(store, job, suspended())
    await store.cancel([job.ref for job in jobs])
    await store.delete([job.ref for job in jobs[::2]])


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """The scripts that are called in the slot of the signals."""
    shared, names = stepping.signals_call, []

    def noted(context: Any, script: str, args: Any) -> Any:
        names.append(script)
        return shared(context, script, args)

    with pytest.MonkeyPatch.context() as patch:  # `dies` undoes all of the other one
        patch.setattr(stepping, "signals_call", noted)
        yield names


@pytest.mark.parametrize("flow", [None, "gone1"])
async def test_a_signal_passes_many_waits_of_ended_jobs_at_once(
    store: RedisStore, calls: list[str], flow: str | None
) -> None:
    await cancelled(store, 100)
    calls.clear()
    assert await store.send_signals([Signal("packed", "7", b"1", flow)]) == [SignalStatus.STORED]
    assert calls.count("send_signals") == 2
    assert len(calls) <= 4


async def test_prune_removes_the_waits_of_ended_jobs(store: RedisStore, calls: list[str]) -> None:
    await cancelled(store, 200)
    ref = await waiting(store)
    await store.prune()
    calls.clear()
    assert await store.send_signals([Signal("packed", "7", b"1")]) == [SignalStatus.RECEIVED]
    assert calls == ["send_signals"]
    assert await value(store, ref) == b"1"


async def test_prune_repeats_many_large_deliveries(
    store: RedisStore, clock: ManualClock, dies: Any, calls: list[str]
) -> None:
    await store.enqueue([new(f"large{n}") for n in range(30)])
    jobs = await take(store, 30)
    waits = [SignalWait(job.lease, "packed", "packed", job.id, LEASE) for job in jobs]
    await store.await_signals(waits)
    dies("deliver")
    for job in jobs:
        with pytest.raises(Killed):
            await store.send_signals([Signal("packed", job.id, bytes(LARGEST_SIGNAL))])
    dies.over()
    clock.advance(2 * SECOND)
    calls.clear()
    await store.prune()
    assert calls.count("prune_signals") > 2
    for job in jobs:
        assert await value(store, job.ref) == bytes(LARGEST_SIGNAL)
