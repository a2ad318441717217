"""The reclaimer reclaims leases only while it could have extended its own leases."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from penstock.core import clock
from penstock.errors import StoreFull
from penstock.maintenance.reclaimer import Reclaimer, ReclaimerSetup
from penstock.stores.contract import Capability, Fetched, Store

_BEAT = 0.05


class Disk:
    """As much of a store as a reclaimer sees, on a disk that may be full: then it only answers questions."""

    def __init__(self) -> None:
        self.full = False
        self.judged = 0
        self.written = 0

    def can(self, capability: Capability) -> bool:
        return True

    async def workers(self) -> list[Any]:
        return []

    async def reclaim(self, queues: Any, **_: Any) -> Fetched:
        await self.write()
        self.judged += 1
        return Fetched([], 0)

    async def write(self) -> None:
        if self.full:
            raise StoreFull("no room")
        self.written += 1


def reclaimer(disk: Disk) -> Reclaimer:
    setup = ReclaimerSetup(
        worker="w",
        queues=("default",),
        lease=15_000,
        heartbeat=_BEAT,
        every=1.0,
        proven_dead=lambda _: set(),
        remove_dead=lambda _: False,
        write=disk.write,
    )
    return Reclaimer(cast(Store, disk), setup)


async def test_without_outages_every_tick_reclaims():
    disk = Disk()
    one = reclaimer(disk)
    for n in range(1, 4):
        await one.tick()
        assert disk.judged == n


async def test_after_a_failure_the_others_get_a_heartbeat_to_speak():
    disk = Disk()
    one = reclaimer(disk)
    disk.full = True
    for _ in range(3):
        with pytest.raises(StoreFull):
            await one.tick()
    disk.full = False
    await one.tick()
    assert (disk.judged, disk.written) == (0, 1), "it has written, and judges nobody yet"
    await asyncio.sleep(2 * _BEAT)
    await one.tick()
    assert disk.judged == 1


async def test_a_heartbeat_that_failed_is_a_failure_too():
    """A disk may be full and free again between two looks at the leases."""
    disk = Disk()
    one = reclaimer(disk)
    one.suspend_reclaim()
    await one.tick()
    assert disk.judged == 0
    await asyncio.sleep(2 * _BEAT)
    await one.tick()
    assert disk.judged == 1


async def test_a_reclaimer_that_cannot_write_does_not_start_its_waiting_time():
    disk = Disk()
    one = reclaimer(disk)
    one.suspend_reclaim()
    disk.full = True
    with pytest.raises(StoreFull):
        await one.tick()
    await asyncio.sleep(2 * _BEAT)
    disk.full = False
    await one.tick()
    assert disk.judged == 0


async def test_after_a_suspend_the_others_get_a_heartbeat_to_speak(monkeypatch: pytest.MonkeyPatch):
    """They have slept, too, if this machine's store counts their leases on through it."""
    disk = Disk()
    one = reclaimer(disk)
    await one.tick()
    real = clock.lease_seconds
    monkeypatch.setattr(clock, "lease_seconds", lambda: real() + 60)
    await one.tick()
    assert disk.judged == 1
    await asyncio.sleep(2 * _BEAT)
    await one.tick()
    assert disk.judged == 2
