"""Options that a store does not honour: refused before anything is stored, and for tasks at registration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Batch, QueueDefaults, Worker, current_job
from penstock.core.job import FINISHED_KEPT, Lease, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import LimitChange, OnFull, Rate
from penstock.core.relations import BatchTerms, FlowMember, Partition, Tenant
from penstock.core.schedule import NewEntry
from penstock.core.unique import UniqueKey
from penstock.encryption import Cipher, Keyring
from penstock.errors import RateLimited, Unsupported
from penstock.stores.contract import (
    OPTIONS,
    Enqueue,
    Extend,
    HeartbeatRequest,
    JobRetry,
    Option,
    Request,
    Settings,
    Settle,
    Settlement,
    Store,
    SyncRequest,
    Wait,
    options_beyond,
)
from penstock.stores.encrypted import encrypted_store
from penstock.stores.sqlite import SqliteStore
from tests.core_store.core_alone import CoreAlone
from tests.core_store.dict_store import DictStore

PATIENCE = 60.0
_LEASE = Lease("default", "x", "token")
#: A value of each option that is not plain.
_USED: dict[tuple[type, str], Any] = {
    (NewJob, "unique"): UniqueKey("key"),
    (NewJob, "partition"): Partition("key"),
    (NewJob, "tenant"): Tenant("key"),
    (NewJob, "batch_terms"): BatchTerms(),
    (NewJob, "priority"): 1,
    (NewJob, "expires_in"): 1_000,
    (NewJob, "expires_at"): 2**42,
    (NewJob, "retention"): 1_000,
    (NewJob, "keep_dead"): 1_000,
    (NewJob, "flow"): FlowMember("default", "flow", 0),
    (LimitChange, "max_size"): 5,
    (LimitChange, "on_full"): OnFull.WAIT,
    (LimitChange, "max_running"): 5,
    (LimitChange, "rate"): Rate(1, 1_000),
    (LimitChange, "throttle"): 1_000,
    (LimitChange, "keep_finished"): 5,
    (LimitChange, "keep_dead"): 5,
    (LimitChange, "keep_finished_for"): 5_000,
    (LimitChange, "keep_dead_for"): 5_000,
    (HeartbeatRequest, "checkpoint"): b"{}",
    (Transition, "state"): State.PARKED,
    (Transition, "throttle"): 1_000,
    (Transition, "throttle_partition"): 1_000,
    (Wait, "parked"): ["default"],
}


def _using(option: Option) -> Request[Any] | None:
    """A request of the core that uses this option; None for an option of other requests."""
    given: dict[str, Any] = {option.field: _USED.get((option.of, option.field))}
    if option.of is NewJob:
        return Enqueue([NewJob("first", "work"), NewJob("x", "work", **given)])
    if option.of is LimitChange:
        return Settings("default", limits=LimitChange(**given))
    if option.of is HeartbeatRequest:
        return Extend([HeartbeatRequest(_LEASE, 1_000, **given)])
    if option.of is Transition:
        return Settle([Settlement(_LEASE, Transition(**{"state": State.DEAD, **given}))])
    return Wait(["default"], timeout=1_000, **given) if option.of is Wait else None


def _refused(lacks: Store) -> list[Request[Any]]:
    found = [_using(option) for option in OPTIONS if option.needs not in lacks.capabilities]
    return [request for request in found if request is not None]


@pytest.fixture(params=["filtered", "dict", "encrypted"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    if request.param == "dict":
        return DictStore()
    filtered = CoreAlone(SqliteStore(tmp_path / "jobs.db"))
    if request.param == "encrypted":
        return encrypted_store(filtered, Cipher(Keyring([bytes(32)])), "")
    return filtered


def test_each_option_is_a_field_and_its_default_is_plain() -> None:
    assert len({(option.of, option.field) for option in OPTIONS}) == len(OPTIONS)
    for option in OPTIONS:
        assert option.field in option.of.__struct_fields__
        names = option.of.__struct_fields__
        defaults = dict(zip(reversed(names), reversed(option.of.__struct_defaults__), strict=False))
        if option.plain and option.field in defaults:
            assert defaults[option.field] in option.plain
        assert option.of in (JobRetry, NewEntry) or _USED[option.of, option.field] not in option.plain


def test_our_own_stores_honour_all(tmp_path: Path) -> None:
    own = SqliteStore(tmp_path / "jobs.db")
    for request in _refused(CoreAlone(own)):
        assert list(options_beyond(request, own.capabilities)) == []


async def test_each_is_refused_before_anything_is_stored(store: Store) -> None:
    requests = _refused(store)
    assert len(requests) >= 10
    for request in requests:
        with pytest.raises(
            Unsupported, match=r"cannot .+, which .+ needs; nothing was changed: leave .+ out"
        ):
            await store.ask(request)
    assert await store.queues() == []


def test_so_it_is_for_threads(store: Store) -> None:
    requests = [request for request in _refused(store) if isinstance(request, SyncRequest)]
    assert {type(request) for request in requests} == {Enqueue, Settings}
    for request in requests:
        with pytest.raises(Unsupported, match="nothing was changed"):
            store.sync.ask(request)
    assert store.sync.queues() == []


async def test_plain_values_are_taken(store: Store) -> None:
    """Those that the client gives to each job, and that a worker stores for queues without limits."""
    await store.enqueue([NewJob("x", "work", retention=FINISHED_KEPT)])
    await store.settings("default", limits=LimitChange(by_code=True, max_size=None))
    (info,) = await store.queues()
    assert info.counts == {State.AVAILABLE: 1}


async def test_a_job_behind_a_settlement_is_checked(store: Store) -> None:
    follows = Settlement(
        _LEASE, Transition(State.COMPLETED), then=(NewJob("y", "work", unique=UniqueKey("k")),)
    )
    with pytest.raises(Unsupported, match="keep unique keys, which unique= needs"):
        await store.settle([follows])


# ── apps ─────────────────────────────────────────────────────────────────────────────────────────

_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"unique": True}, "unique="),
    ({"concurrency_key": "n"}, "concurrency_key="),
    ({"fair_by": "n"}, "fair_by="),
    ({"priority": 3}, "priority="),
    ({"expires": "1h"}, "expires="),
    ({"retention": "1h"}, "retention="),
    ({"keep_dead": "1h"}, "keep_dead="),
]


@pytest.mark.parametrize(("options", "named"), _OPTIONS)
def test_a_task_is_refused_when_it_is_registered(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    app = App(store=CoreAlone(SqliteStore(tmp_path / "jobs.db")))

    def work(n: int) -> int:
        return n

    with pytest.raises(Unsupported, match=rf"sqlite://.* does not support {named} of the task '.*work'"):
        app.task(**options)(work)
    assert not app.tasks
    app.task(work)


def test_what_else_an_app_registers_is_refused(tmp_path: Path) -> None:
    app = App(store=CoreAlone(SqliteStore(tmp_path / "jobs.db")))

    @app.task
    def work() -> None: ...

    with pytest.raises(Unsupported, match="batch= of the task 'collect'"):

        @app.task(batch=Batch(), name="collect")
        def collect(items: list[int]) -> None: ...

    with pytest.raises(Unsupported, match="priority= of the handler of the queue 'raw'"):

        @app.handler(queue="raw", priority=5)
        def handle(job: Any) -> None: ...

    with pytest.raises(Unsupported, match=r"a schedule of the periodic entry .* \(it cannot keep periodic"):
        app.periodic("* * * * *", task=work)
    assert not app.handlers
    assert not app.periodic_entries
    with pytest.raises(Unsupported, match="max_running= of the queue 'mail'"):
        App(store=app.store, queues={"mail": QueueDefaults(max_running=3)})


def test_all_are_listed_if_the_store_comes_later(tmp_path: Path) -> None:
    app = App("memory://")

    @app.task(unique=True, name="first")
    def first() -> None: ...

    @app.task(priority=5, expires="1m", name="second")
    def second() -> None: ...

    with pytest.raises(Unsupported) as raised:
        app.use_store(CoreAlone(SqliteStore(tmp_path / "jobs.db")))
    for named in ("unique= of the task 'first'", "priority= of the task 'second'", "expires= of the task"):
        assert named in str(raised.value)
    assert app.store_url == "memory://"


async def test_one_call_is_refused_by_the_store(store: Store) -> None:
    app = App(store=store)

    @app.task
    def work() -> None: ...

    with pytest.raises(Unsupported, match="keep unique keys"):
        await work.using(unique=True).aenqueue()


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_of_an_unknown_task_comes_back_later(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The store cannot park it."""
    app = App(store=store)
    await store.enqueue([NewJob("x", "unknown")])
    await asyncio.wait_for(Worker(app, burst=True, queues=["default"]).run(), PATIENCE)
    (info,) = await store.queues()
    assert {state: n for state, n in info.counts.items() if n} == {State.SCHEDULED: 1}
    assert "no task 'unknown' in this worker; the job is due again later" in caplog.text


async def test_a_throttled_job_comes_back_later_alone(store: Store) -> None:
    app, ran = App(store=store), []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)
        if ran.count(1) == 1 and n == 1:
            raise RateLimited(retry_after=0.2)
        assert current_job().attempt == 1

    await app.aenqueue_many([work.job(1), work.job(2)])
    await asyncio.wait_for(Worker(app, burst=True, concurrency=1).run(), PATIENCE)
    assert ran[:2] == [1, 2]
