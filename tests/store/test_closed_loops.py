"""A closed event loop that used a store leaves no object and no file descriptor behind."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from penstock.stores.contract import Store
from tests.store.facts import OpenStore, new

LOOPS = 12
#: The last loop may be held until the store is used again.
KEPT = 1


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collects the last loop, which a closed store has let go: its warnings belong here, and not to the test
    that happens to collect it. Set up first, and so torn down after the stores."""
    yield
    gc.collect()


async def use(store: Store) -> None:
    """An enqueue, a wait for its end, a wait for work, and one that is cut off."""
    spec = new()
    await store.enqueue([spec])
    await store.wait_for_end([spec.ref], timeout=0)
    await store.wait(["empty"], timeout=0)
    waiting = asyncio.ensure_future(store.wait_for_end([spec.ref], timeout=60_000))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def run(work: Coroutine[Any, Any, None]) -> weakref.ref[asyncio.AbstractEventLoop]:
    """As asyncio.run."""
    with asyncio.Runner() as runner:
        runner.run(work)
        return weakref.ref(runner.get_loop())


def run_carelessly(work: Coroutine[Any, Any, None]) -> weakref.ref[asyncio.AbstractEventLoop]:
    """A loop that is closed without the farewell of its generators."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
        return weakref.ref(loop)
    finally:
        loop.close()


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("run", [run, run_carelessly])
def test_closed_event_loops_are_let_go(
    open_store: OpenStore, run: Callable[..., weakref.ref[asyncio.AbstractEventLoop]]
) -> None:
    store = open_store()
    run(use(store))
    before = descriptors()
    loops = [run(use(store)) for _ in range(LOOPS)]
    after = descriptors()
    alive = sum(loop() is not None for loop in loops)
    assert alive <= KEPT, f"{alive} of {LOOPS} closed loops are alive"
    assert after <= before + 2, f"{after - before} descriptors are left open"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("run", [run, run_carelessly])
def test_a_closed_store_keeps_no_descriptor_of_a_closed_loop(
    open_store: OpenStore, run: Callable[..., weakref.ref[asyncio.AbstractEventLoop]]
) -> None:
    first, second = open_store(), open_store()
    run(use(first))
    first.close()
    before = descriptors()
    run(use(second))
    second.close()
    assert descriptors() <= before
