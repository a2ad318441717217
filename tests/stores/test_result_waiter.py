"""Who waits for ends in one event loop: one question for all of them, and errors to all whom they concern."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.core.job import Ref
from penstock.errors import StoreUnavailable
from penstock.stores.result_waiter import Ended, Endings

A, B, C = (Ref("default", id) for id in "abc")
SOON = 10.0


class Place:
    """A store, as far as it says who has ended: those in `over`."""

    def __init__(self, every: float = 60.0) -> None:
        self.over: set[Ref] = set()
        self.looks: list[set[Ref]] = []
        self.away = False
        self.heard: Callable[[], None] | None = None
        self.endings = Endings(self.look, every=every, listening=self.listening)

    async def look(self, refs: Sequence[Ref], seconds: float) -> Ended:
        assert len(set(refs)) == len(refs)
        assert seconds >= self.endings._every, "until it is asked again, it has to tell"
        self.looks.append(set(refs))
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away")
        return dict.fromkeys(ref for ref in refs if ref in self.over)

    @contextlib.contextmanager
    def listening(self, heard: Callable[[], None]) -> Iterator[None]:
        assert self.heard is None, "once for all"
        self.heard = heard
        yield
        self.heard = None

    def wait(self, *refs: Ref, timeout: int = 60_000) -> asyncio.Task[Ended]:
        return asyncio.create_task(self._all(refs, timeout))

    async def _all(self, refs: Sequence[Ref], timeout: int) -> Ended:
        found: Ended = {}
        async with contextlib.aclosing(self.endings.ends(refs, timeout)) as ends:
            async for some in ends:
                found |= some
        return found

    async def ring(self, *over: Ref) -> None:
        self.over |= set(over)
        assert self.heard is not None, "somebody listens"
        self.heard()
        await ticks()


async def ticks(n: int = 10) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_a_ring_is_one_look_for_all() -> None:
    place = Place()
    waits = [place.wait(A), place.wait(B), place.wait(A, B, C)]
    await ticks()
    assert place.looks == [{A, B, C}], "who begins at the same moment is looked after together"
    await place.ring(A, B)
    assert place.looks[1:] == [{A, B, C}]
    assert [wait.done() for wait in waits] == [True, True, False]
    await place.ring(C)
    assert place.looks[2:] == [{C}]
    assert await asyncio.wait_for(waits[2], SOON) == {A: None, B: None, C: None}
    assert place.heard is None, "nobody listens when nobody waits"


async def test_rings_while_a_look_is_under_way_are_one_more() -> None:
    place = Place()
    wait = place.wait(A)
    await ticks()
    for _ in range(5):
        place.endings.doubt()
    await ticks()
    for _ in range(5):
        place.endings.doubt()
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert len(place.looks) <= 7
    await place.ring(A)
    assert await asyncio.wait_for(wait, SOON) == {A: None}


async def test_news_of_one_needs_no_look() -> None:
    place = Place()
    wait = place.wait(A)
    await ticks()
    place.endings.tell({A: None, B: None})
    assert await asyncio.wait_for(wait, SOON) == {A: None}
    assert len(place.looks) == 1


async def test_a_doubt_about_one_is_a_look_at_that_one() -> None:
    place = Place()
    wait = place.wait(A, B)
    await ticks()
    place.over = {A, B}
    place.endings.doubt(A)
    place.endings.doubt(C)  # nobody waits for it
    await ticks()
    assert place.looks[1:] == [{A}]
    wait.cancel()


async def test_a_lost_ring_is_made_good_by_the_look_now_and_then() -> None:
    place = Place(every=0.02)
    wait = place.wait(A)
    await ticks()
    place.over = {A}
    assert await asyncio.wait_for(wait, SOON) == {A: None}


async def test_when_the_first_look_fails_each_who_began_hears_of_it() -> None:
    place = Place()
    place.away = True
    for wait in [place.wait(A), place.wait(B)]:
        with pytest.raises(StoreUnavailable):
            await wait
    assert place.heard is None
    place.away = False
    wait = place.wait(A)
    await ticks()
    await place.ring(A)
    assert await wait == {A: None}


async def test_when_a_later_look_fails_all_who_wait_hear_of_it() -> None:
    place = Place()
    waits = [place.wait(A), place.wait(B)]
    await ticks()
    place.away = True
    await place.ring()
    for wait in waits:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(wait, SOON)


async def test_who_gives_up_is_forgotten_and_nobody_else() -> None:
    place = Place()
    leaves, stays = place.wait(A, B), place.wait(B)
    await ticks()
    leaves.cancel()
    await ticks()
    await place.ring(B)
    assert place.looks[1:] == [{B}]
    assert await stays == {B: None}
    assert not place.endings._waits
    assert await place.wait(A, timeout=0) == {}
    assert not place.endings._waits
