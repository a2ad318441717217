"""Concurrency keys and fairness keys of the jobs of a flow."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, ConfigError
from penstock.core.job import State
from penstock.core.relations import Tenant
from penstock.stores.contract import Store
from penstock.workflows import Flow, chain, chord, group, immutable, into
from tests.store.facts import counts, end, take, the


@pytest.fixture
def app(store: Store) -> App:
    made = App("memory://")
    made.use_store(store)
    return made


async def advance(store: Store) -> None:
    while await store.advance_flows():
        pass


async def keys(store: Store) -> list[str]:
    page = await store.list_jobs(queue="default")
    return sorted(job.spec.partition.key for job in page.jobs if job.spec.partition)


async def test_a_limit_of_one_holds_between_nodes_and_plain_jobs(store: Store, app: App) -> None:
    @app.task(concurrency_key="account")
    async def pay(account: str) -> None: ...

    await group([pay.job("a"), pay.job("a"), pay.job("b")]).aenqueue()
    await pay.aenqueue("a")
    assert len(await take(store, 9)) == 2
    assert (await counts(store))[State.WAITING] == 2


async def test_a_node_that_waits_takes_part_in_the_limit_when_it_starts(store: Store, app: App) -> None:
    @app.task
    async def total() -> int:
        return 1

    @app.task(concurrency_key="account", fair_by="account", fair_weights={"a": 3})
    async def pay(amount: int, account: str = "nobody") -> None: ...

    await pay.aenqueue(5, account="a")
    (running,) = await take(store)
    await chain(total, pay.partial(account="a")).aenqueue()
    (first,) = await take(store)
    await end(store, first, result=b"1")
    await advance(store)
    assert await take(store) == []
    assert (await counts(store))[State.WAITING] == 1
    await end(store, running)
    (job,) = await take(store)
    assert job.spec.partition is not None
    assert job.spec.partition.key == "a"
    assert job.spec.tenant == Tenant("a", 3)
    assert (await the(store, job)).state is State.RUNNING


async def test_keys_are_computed_from_the_arguments_that_are_known(store: Store, app: App) -> None:
    @app.task
    async def number() -> int:
        return 1

    def by_both(account: str, region: str) -> str:
        return f"{account}/{region}"

    @app.task(concurrency_key=by_both)
    async def one(account: str, x: int, region: str = "eu") -> None: ...

    @app.task(concurrency_key=("account", "rest"))
    async def two(x: int, account: str, *rest: str, **others: int) -> None: ...

    await chain(number, one.partial("a")).aenqueue()
    await chain(number, into("x", two.partial(account="a"))).aenqueue()
    for job in await take(store, 2):
        await end(store, job, result=b"1")
    await advance(store)
    assert await keys(store) == ['["a",[]]', "a/eu"]


async def test_a_key_that_depends_on_a_result_is_refused_and_nothing_is_stored(
    store: Store, app: App
) -> None:
    @app.task
    async def name() -> str:
        return "a"

    @app.task(concurrency_key="account")
    async def required(account: str, x: int = 0) -> None: ...

    @app.task(concurrency_key="account")
    async def with_default(account: str = "nobody") -> None: ...

    @app.task(fair_by=lambda account, **_: account)
    async def fair(account: str) -> None: ...

    @app.task(concurrency_key=("x", "accounts"))
    async def many(x: int, *accounts: Any) -> None: ...

    graph = Flow()
    graph.add(required, after={"account": graph.add(name)})
    flows: list[Any] = [
        chain(name, required),
        chain(name, with_default),
        chain(name, fair),
        chain(name, many.partial(1)),
        chain(name, into("account", required.partial(x=1))),
        chord([name], many.partial(1)),
        group([name.job()]).on_success(many.partial(1)),
        graph,
    ]
    for flow in flows:
        with pytest.raises(ConfigError, match=r"is the result of another node.*task\.partial\(accounts?="):
            await flow.aenqueue()
    assert (await store.list_flows()).flows == []
    assert await counts(store) == {}
    await chain(name, immutable(required.job("known"))).aenqueue()


async def test_a_key_of_none_sets_no_limit_in_a_flow(store: Store, app: App) -> None:
    @app.task(concurrency_key="account")
    async def pay(account: str | None = None) -> None: ...

    await group([pay.job(), pay.job(None), pay.job()]).aenqueue()
    assert len(await take(store, 9)) == 3
