"""Limits by an operator and by the app's code: both are kept, and the operator's value is in effect."""

from __future__ import annotations

from typing import Any

from penstock.core.limits import (
    NO_LAYERS,
    NO_LIMITS,
    LimitChange,
    LimitLayers,
    OnFull,
    QueueLimits,
    Rate,
    limits_by_code,
    limits_reset,
)
from penstock.stores.contract import QueueInfo, Store
from tests.cases import each
from tests.store.facts import OpenStore, add, new, take

#: One value of each limit, and another.
EACH: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("max_size", {"max_size": 5}, {"max_size": 7}),
    ("on_full", {"on_full": "wait"}, {"on_full": "reject"}),
    ("max_running", {"max_running": 5}, {"max_running": 7}),
    ("rate", {"rate": "5/s"}, {"rate": "7/min", "burst": 3}),
    ("keep_finished", {"keep_finished": 0}, {"keep_finished": 7}),
    ("keep_dead", {"keep_dead": 5}, {"keep_dead": 0}),
    ("keep_finished_for", {"keep_finished_for": "5s"}, {"keep_finished_for": "7s"}),
    ("keep_dead_for", {"keep_dead_for": "5s"}, {"keep_dead_for": "7s"}),
]


async def by_operator(store: Store, **limits: Any) -> QueueInfo:
    return await store.settings("q", limits=LimitChange.of(**limits))


async def by_code(store: Store, **limits: Any) -> QueueInfo:
    return await store.settings("q", limits=limits_by_code(**limits))


async def reset(store: Store, *names: str) -> QueueInfo:
    return await store.settings("q", limits=limits_reset(names) if names else limits_reset())


def effective(**limits: Any) -> QueueLimits:
    return LimitLayers(LimitChange.of(**limits)).limits()


def value(info: QueueInfo, name: str) -> object:
    return getattr(info.limits, name)


@each("name, one, other", EACH)
async def test_the_codes_limit_is_in_effect_until_an_operator_sets_another(
    store: Store, name: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    info = await by_code(store, **one)
    assert (info.limits, info.layers.source(name)) == (effective(**one), "code")
    info = await by_operator(store, **other)
    assert (info.limits, info.layers.source(name)) == (effective(**other), "operator")
    assert (
        info.layers.code
        == LimitLayers(code=limits_by_code(**one)).changed(limits_by_code(**one), NO_LIMITS).code
    )
    assert await store.queues() == [info]
    info = await reset(store, name)
    assert (info.limits, info.layers.source(name)) == (effective(**one), "code")


@each("name, one, other", EACH)
async def test_the_code_does_not_overwrite_an_operators_limit(
    store: Store, name: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    await by_operator(store, **one)
    info = await by_code(store, **other)
    assert (info.limits, info.layers.source(name)) == (effective(**one), "operator")
    assert await store.queues() == [info]


async def test_limits_follow_the_code_of_the_next_deploy(store: Store) -> None:
    await by_code(store, rate="5/s", max_size=10)
    info = await by_code(store, rate="7/s", max_running=3)
    assert info.limits == QueueLimits(rate=Rate.of("7/s"), max_running=3)
    assert info.layers.source("max_size") == "default"
    info = await by_code(store)
    assert (info.limits, info.layers) == (NO_LIMITS, NO_LAYERS)


async def test_each_limit_is_set_by_itself(store: Store) -> None:
    await by_code(store, rate="5/s", max_size=10, on_full="wait")
    info = await by_operator(store, max_size=3)
    assert info.limits == QueueLimits(rate=Rate.of("5/s"), max_size=3, on_full=OnFull.WAIT)
    sources = [info.layers.source(name) for name in ("rate", "max_size", "on_full", "max_running")]
    assert sources == ["code", "operator", "code", "default"]


async def test_an_operators_none_is_no_limit_whatever_the_code_says(store: Store) -> None:
    await by_code(store, rate="5/s", max_running=3)
    info = await by_operator(store, rate=None)
    assert (info.limits, info.layers.source("rate")) == (QueueLimits(max_running=3), "operator")
    info = await by_code(store, rate="9/s")
    assert info.limits == NO_LIMITS
    assert (await reset(store)).limits == effective(rate="9/s")


async def test_an_operators_rate_keeps_the_burst_in_effect(store: Store) -> None:
    await by_code(store, rate="5/s", burst=4)
    info = await by_operator(store, rate="9/s")
    assert info.limits.rate == Rate.of("9/s", burst=4)
    info = await by_code(store, rate="5/s")  # code says all that it wants
    assert info.limits.rate == Rate.of("9/s", burst=4)
    assert (await reset(store, "rate")).limits.rate == Rate.of("5/s", burst=1)


async def test_a_reset_of_what_nobody_has_set_changes_nothing(store: Store) -> None:
    info = await by_operator(store, max_running=3)
    assert await reset(store, "rate", "max_size") == info
    assert await reset(store) == QueueInfo("q", {})


async def test_setting_the_same_again_changes_nothing(store: Store) -> None:
    info = await by_code(store, rate="5/s", max_size=10)
    assert await by_code(store, rate="5/s", max_size=10) == info
    info = await by_operator(store, rate="6/s")
    assert await by_operator(store, rate="6/s") == info


async def test_the_limits_of_code_last_and_count_for_all(store: Store, open_store: OpenStore) -> None:
    await add(store, *(new(queue="q") for _ in range(5)))
    info = await by_code(store, max_running=2)
    other = open_store()
    assert [queue.layers for queue in await other.queues()] == [info.layers]
    assert len(await take(other, 9, "q")) == 2
    await by_operator(other, max_running=3)
    assert len(await take(store, 9, "q")) == 1


async def test_a_throttle_and_the_switches_leave_the_layers_alone(store: Store) -> None:
    info = await by_code(store, max_running=2)
    await store.settings("q", paused=True, limits=LimitChange.of(throttle="5s"))
    (queue,) = await store.queues()
    assert (queue.layers, queue.limits) == (info.layers, info.limits)


async def test_a_dropped_queue_has_no_limits_of_anybody(store: Store) -> None:
    await by_code(store, max_running=2)
    await by_operator(store, rate="5/s")
    assert await store.drop("q")
    assert await store.settings("q") == QueueInfo("q", {})
