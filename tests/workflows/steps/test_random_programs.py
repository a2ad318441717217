"""Random programs with durable steps do what a direct run of the same text does, whatever happens meanwhile.

Each program is played as it is, then with a kill or a lost reply at places of it, and with a suspension at
others. A failure is shown as Python text, as small as it can be. Every run plays the same programs;
`FUZZ=20 pytest tests/workflows/steps/test_random_programs.py` plays twenty times as many, at random, and
`PROGRAM=17` begins with that seed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.core.clock import ManualClock
from penstock.encryption import Cipher, Keyring
from penstock.stores.contract import Store
from penstock.stores.encrypted import encrypted_store
from tests import servers
from tests.crash.shared_stores import open_store
from tests.fuzz import FACTOR
from tests.workflows.steps.programs.play import Played, Player, StoreOf, programs_of

#: Programs of each size, on each store. Most on the quickest.
PROGRAMS = {"memory": 20, "sqlite": 6, "redis": 6, "redis-cluster": 3, "encrypted": 6}
SIZES = (1, 2, 4)
#: The first seed; another one each time if more are played.
FIRST = int(os.environ.get("PROGRAM", "0")) or (random.SystemRandom().randrange(1_000_000) if FACTOR else 1)

#: More (s) than a machine that stalls needs: a run takes the error by which pytest ends a test for its own.
_LIMIT = 900 * max(1, FACTOR)
pytestmark = [pytest.mark.timeout(_LIMIT), pytest.mark.usefixtures("no_timers")]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL)  # a worker says much about runs that fail
    yield
    gc.collect()  # the coroutines of killed runs end here, and not inside of another test


@pytest.fixture
def store_of(tmp_path: Path) -> Iterator[Callable[[str], StoreOf]]:
    """Opens stores of a kind, each new and with the given clock."""
    prefix = f"penstock-{uuid4().hex[:8]}"

    def of(kind: str) -> StoreOf:
        @contextlib.contextmanager
        def opened(clock: ManualClock) -> Iterator[Store]:
            name = uuid4().hex[:8]
            match kind:
                case "redis":
                    place = f"{servers.SHARED_REDIS.get().url}?prefix={prefix}.{name}"
                case "redis-cluster":
                    place = f"{servers.SHARED_CLUSTER.get().url}?prefix={prefix}.{name}"
                case "sqlite":
                    place = str(tmp_path / f"{name}.db")
                case _:
                    place = name
            store = open_store("memory" if kind == "encrypted" else kind, place, clock)
            try:
                yield encrypted_store(store, Cipher(Keyring([bytes(32)]))) if kind == "encrypted" else store
            finally:
                store.close()

        return opened

    yield of
    if servers.SHARED_REDIS.started is not None:
        servers.remove_keys([servers.SHARED_REDIS.started], having=prefix)
    if servers.SHARED_CLUSTER.started is not None:
        servers.remove_keys(servers.SHARED_CLUSTER.started.servers, having=prefix)


async def nothing_is_wrong(player: Player, played: Played) -> None:
    print(f"from seed {FIRST}: {played}")
    if played.wrong:
        trial, wrong = played.wrong[0]
        pytest.fail(f"{played}; the first:\n{await player.smallest(trial, wrong)}")


@pytest.mark.parametrize("kind", PROGRAMS)
async def test_programs_do_what_they_do_without_a_store(
    kind: str, store_of: Callable[[str], StoreOf]
) -> None:
    player, dice = Player(store_of(kind)), random.Random(FIRST)
    for size in SIZES:
        first = FIRST + 1000 * size
        count = PROGRAMS[kind] * max(1, FACTOR)
        played = await player.play(programs_of(range(first, first + count), size), dice)
    await nothing_is_wrong(player, played)


@pytest.mark.parametrize("kind", PROGRAMS)
async def test_two_releases_of_a_program(kind: str, store_of: Callable[[str], StoreOf]) -> None:
    player, dice = Player(store_of(kind)), random.Random(FIRST)
    count = 3 * PROGRAMS[kind] * max(1, FACTOR)
    played = await player.play_releases(range(FIRST, FIRST + count), 3, dice)
    await nothing_is_wrong(player, played)


async def test_each_place_of_small_programs_is_struck(store_of: Callable[[str], StoreOf]) -> None:
    player, dice = Player(store_of("memory")), random.Random(FIRST)
    played = await player.play(programs_of(range(FIRST, FIRST + 4 * max(1, FACTOR)), 1), dice, most=1_000)
    assert played.kills > played.programs * 10
    await nothing_is_wrong(player, played)
