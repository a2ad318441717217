"""Each rule of durable steps is needed: without it, random programs find what goes wrong.

The rules are those of docs/durable-steps.md. A mutant counts as caught by a program that is right without it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.stores.contract import Store
from penstock.stores.memory import MemoryStore
from penstock.workflows import iteration
from penstock.workflows.branching import First
from penstock.workflows.failures import Failures
from penstock.workflows.scopes import Scopes
from penstock.workflows.step_memory import StepMemory, StepPlan
from penstock.workflows.step_run import StepRun
from tests.workflows.steps.programs.fleet import Stuck
from tests.workflows.steps.programs.play import Player, programs_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("no_timers")]

Patch = Callable[[pytest.MonkeyPatch], None]

#: Programs that are played at a time: few, as most mutants are caught by the first of them.
_BATCH = 5


def nothing(*args: Any, **options: Any) -> Iterator[None]:
    """A plan that does nothing."""
    return iter(())


def does(target: Any, name: str, instead: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(target, name, instead)


def undone_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order = StepMemory.order_in_store

    def turned(self: StepMemory) -> StepPlan[dict[str, int]]:
        return {name: -n for name, n in (yield from order(self)).items()}

    monkeypatch.setattr(StepMemory, "order_in_store", turned)


def uses_are_those_of_all_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scopes, "current", lambda self, runner=None: self.main)
    monkeypatch.setattr(Scopes, "begin", lambda self, use: None)


#: What is left out: the patch, whether two releases show it, and within how many programs.
MUTANTS: dict[str, tuple[Patch, bool, int]] = {
    "what is asked is not compared": (does(StepRun, "_compare", lambda *_: None), True, 60),
    "versions are not compared": (does(StepRun, "_check_version", nothing), True, 100),
    "uses are those of all branches": (uses_are_those_of_all_branches, False, 20),
    "an item of a loop has no cursor": (
        does(iteration, "item_part", lambda loop, at: f"{loop}[]"),
        False,
        40,
    ),
    "failures are not stored": (does(Failures, "record", nothing), False, 20),
    "failures are not forgotten": (does(Failures, "forget", nothing), False, 20),
    "what was cut off is not stored": (does(StepRun, "cut_off", nothing), False, 20),
    "the first of several is not stored": (does(First, "_choose", nothing), False, 60),
    "steps are undone in their order": (undone_in_order, False, 60),
    "waits are not withdrawn": (does(StepRun, "_left_waits", lambda self: []), True, 100),
}
#: The first of the programs that show it, where it is not among the first. They are played before the others.
SHOWN_BY = {
    "what is asked is not compared": 6,
    "versions are not compared": 6,
    "uses are those of all branches": 6,
    "an item of a loop has no cursor": 6,
    "the first of several is not stored": 21,
    "steps are undone in their order": 41,
}


@contextlib.contextmanager
def in_memory(clock: ManualClock) -> Iterator[Store]:
    store = MemoryStore(clock=clock)
    yield store
    store.close()


async def found_by(player: Player, seeds: Sequence[int], two_releases: bool) -> set[str]:
    """The programs that are wrong, by seed, faults and suspensions."""
    dice = random.Random(seeds[0])
    player.played.wrong.clear()
    try:
        if two_releases:
            await player.play_releases(seeds, 3, dice)
        else:
            await player.play(programs_of(seeds, 3), dice, most=2)
    except Stuck as stuck:
        return {str(stuck)}
    return {f"{trial.program} {trial.faults}" for trial, _ in player.played.wrong}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL)  # a worker says much about runs that fail
    yield
    gc.collect()  # the coroutines of killed runs end here, and not inside of another test


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, two_releases, most = MUTANTS[name]
    shown_by = SHOWN_BY.get(name, 1)
    for first in sorted(range(1, most + 1, _BATCH), key=lambda one: one < shown_by):
        seeds = range(first, first + _BATCH)
        with monkeypatch.context() as mutated:
            patch(mutated)
            wrong = await found_by(Player(in_memory), seeds, two_releases)
        if wrong and wrong - await found_by(Player(in_memory), seeds, two_releases):
            print(f"{name}: caught by {len(wrong)} trials of programs {first} to {seeds[-1]}")
            return
    pytest.fail(f"{most} programs are right although {name}")
