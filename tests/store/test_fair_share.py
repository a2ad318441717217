"""Fair share: in a fair queue every tenant with jobs gets one job per round."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob, State
from penstock.core.relations import Partition, Tenant
from penstock.core.unique import UniqueKey
from penstock.stores.contract import Store
from tests.store.facts import (
    PUT_BACK,
    RELEASED,
    SECOND,
    add,
    end,
    ids,
    new,
    retryable,
    some,
    take,
    take_one,
)


def of(key: str, n: int, weight: int = 1, **facts: object) -> list[NewJob]:
    return some(n, tenant=Tenant(key, weight), headers={"of": key}, **facts)


async def order(store: Store, n: int = 99) -> str:
    """Whose jobs come, in their order."""
    return "".join((job.spec.headers or {}).get("of", "-") for job in await take(store, n))


async def test_tenants_take_turns(store: Store) -> None:
    await add(store, *of("a", 5), *of("b", 2), *of("c", 1))
    assert await order(store) == "abcabaaa"


async def test_a_late_key_waits_for_one_round_at_most(store: Store) -> None:
    await add(store, *of("a", 300), *of("b", 30))
    await order(store, 20)
    await add(store, *of("c", 1))
    assert "c" in await order(store, 3)


async def test_a_single_job_is_next_behind_thousands_of_another_key(store: Store) -> None:
    await add(store, *of("a", 5_000))
    await add(store, *of("b", 1))
    assert "b" in await order(store, 2)


async def test_a_key_that_was_away_saves_no_turns_up(store: Store) -> None:
    await add(store, *of("a", 9), *of("b", 1))
    await order(store, 7)
    await add(store, *of("b", 3))
    assert Counter(await order(store, 4))["b"] <= 2


async def test_weights_are_turns_per_round(store: Store) -> None:
    await add(store, *of("a", 40), *of("b", 40, 3))
    assert Counter(await order(store, 40)) == {"a": 10, "b": 30}


async def test_new_tenants_are_served_in_the_order_of_their_first_jobs(store: Store) -> None:
    jobs = [new(tenant=Tenant(f"k{n}")) for n in range(200)]
    await add(store, *jobs)
    assert ids(await take(store, 200)) == ids(jobs)


async def test_others_that_come_without_end_do_not_starve_a_keys_next_job(store: Store) -> None:
    await add(store, *of("a", 2, weight=100))
    seen = ""
    for n in range(100):
        await add(store, new(tenant=Tenant(f"k{n}")))
        seen += await order(store, 1)
    assert seen.count("a") == 2


async def test_jobs_from_before_the_setting_come_first_in_order(store: Store) -> None:
    before = some(3)
    await add(store, *before)
    await add(store, *of("a", 2), *of("b", 1))
    assert await order(store) == "---aba"


async def test_jobs_without_a_turn_are_one_key(store: Store) -> None:
    await add(store, *of("a", 3), *some(3), *of("b", 1))
    assert await order(store) == "a-ba-a-"


async def test_priorities_come_before_turns(store: Store) -> None:
    await add(store, *of("a", 2), *of("b", 2, priority=1), *of("a", 2, priority=1))
    assert await order(store) == "babaaa"


async def test_released_jobs_come_first_and_returned_jobs_keep_their_places(store: Store) -> None:
    jobs = [*of("a", 3), *of("b", 3)]
    await add(store, *jobs)
    first, second, third = await take(store, 3)
    await end(store, third, PUT_BACK)
    await end(store, second, PUT_BACK)
    await end(store, first, RELEASED)
    assert ids(await take(store, 3)) == ids([first, second, third])


async def test_one_that_goes_before_its_turn_gives_it_back(store: Store) -> None:
    a, b = of("a", 3), of("b", 4)
    await add(store, *a, *b)
    await store.cancel([a[2].ref])
    await store.delete([a[1].ref])
    await add(store, *of("a", 1))
    assert await order(store) == "abbabb"


async def test_a_job_whose_content_is_replaced_keeps_its_place_and_its_tenants_places(store: Store) -> None:
    key = UniqueKey("u", replace=1)
    first, replaced, third, last = (new(name, tenant=Tenant("a")) for name in ("1", "2", "3", "4"))
    await add(store, first, *of("b", 1), msgspec.structs.replace(replaced, unique=key), third)
    for payload in (b"2", b"3"):
        await store.enqueue([new("again", payload=payload, tenant=Tenant("a"), unique=key)])
    await store.cancel([replaced.ref])
    await add(store, last)
    assert [job.id for job in await take(store, 9) if job.spec.tenant == Tenant("a")] == ["1", "3", "4"]


async def test_jobs_of_one_key_never_share_a_place(store: Store) -> None:
    jobs = [new(name, tenant=Tenant("a")) for name in ("d", "c", "b", "a")]
    await add(store, *jobs)
    for job in jobs[1:3]:
        await store.reschedule([job.ref])
    late = new("0", tenant=Tenant("a"))
    await add(store, late)
    assert ids(await take(store, 9)) == ["d", "a", "c", "b", "0"]


async def test_delayed_and_retried_jobs_take_a_new_turn(store: Store, clock: ManualClock) -> None:
    await add(store, *of("a", 4), *of("b", 1, delay=SECOND))
    job = await take_one(store)
    await end(store, job, retryable(SECOND))
    clock.advance(SECOND)
    await store.promote(["default"], limit=9)
    assert await order(store) == "baaaa"


async def test_a_job_of_a_partition_takes_its_turn_when_it_is_admitted(store: Store) -> None:
    partition = Partition("k")
    await add(store, *of("a", 3, partition=partition), *of("b", 3))
    assert await order(store, 2) == "ab"
    (held,) = [job for job in (await store.list_jobs(state=State.RUNNING)).jobs if job.spec.partition]
    await end(store, held)
    assert await order(store) == "abb"


async def test_an_idle_tenant_is_removed_and_all_start_equal(store: Store) -> None:
    await add(store, *of("a", 5), *of("b", 1))
    await order(store)
    await store.prune()
    await add(store, *of("a", 2), *of("b", 2))
    assert await order(store) == "abab"


async def test_a_queue_that_is_dropped_is_no_longer_fair(store: Store) -> None:
    await add(store, *of("a", 1))
    await end(store, await take_one(store), RELEASED)
    await store.purge("default", list(State))
    assert await store.drop("default")
    jobs = [*some(2), *some(1)]
    await add(store, *jobs)
    assert ids(await take(store, 9)) == ids(jobs)
