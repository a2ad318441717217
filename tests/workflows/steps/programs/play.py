"""Plays random programs on a store, with faults at their calls of it, and judges them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from penstock.core.clock import ManualClock
from penstock.stores.contract import Store
from tests.workflows.steps.programs.fleet import Fault, Fleet, Stuck, Trial
from tests.workflows.steps.programs.generate import generated, operations_of, releases, with_sleep
from tests.workflows.steps.programs.judge import faults_of, told
from tests.workflows.steps.programs.language import Program
from tests.workflows.steps.programs.shrink import shrunk

__all__ = ["Played", "Player", "StoreOf"]

KINDS = ("kill-before", "kill-after", "kill-after", "lost")
#: Opens a new store with this clock.
StoreOf = Callable[[ManualClock], AbstractContextManager[Store]]
#: Trials of one worker.
_BATCH = 250


@dataclass
class Played:
    """What was played, and what was wrong."""

    programs: int = 0
    trials: int = 0
    kills: int = 0
    runs: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[Trial, list[str]]] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.trials} trials with {self.kills} faults and {self.runs} runs: "
            f"{len(self.wrong)} wrong; {dict(sorted(self.operations.items()))}"
        )


class Player:
    """Plays programs on stores of one kind."""

    def __init__(self, store_of: StoreOf) -> None:
        self._store_of = store_of
        self._numbers = 0
        self.played = Played()

    async def play(self, programs: Sequence[Program], dice: random.Random, *, most: int = 6) -> Played:
        """Play each program without a fault, and then with `most` faults and `most / 2` suspensions.

        `most` of 0: without any.
        """
        plain = [self._trial(program) for program in programs]
        await self._judged(plain)
        trials = []
        for trial in plain:
            self.played.operations.update(operations_of(trial.program))
            places = range(1, len(trial.calls) + 1)
            faults = [Fault(kind, call) for call in places for kind in dict.fromkeys(KINDS)]
            for fault in dice.sample(faults, min(most, len(faults))):  # a small program has not more places
                others = (
                    (Fault(dice.choice(KINDS), fault.call + dice.randint(1, 9)),)
                    if dice.random() < 0.2
                    else ()
                )
                trials.append(self._trial(trial.program, (fault, *others)))
            pauses = [with_sleep(trial.program, n) for n in range(12)]
            for paused in dice.sample([one for one in pauses if one], min(most // 2, sum(map(bool, pauses)))):
                one = Fault(dice.choice(KINDS), dice.randint(1, len(places) + 3))
                trials.append(self._trial(paused, (one,) if dice.random() < 0.5 else ()))
        await self._judged(trials)
        self.played.programs += len(programs)
        return self.played

    async def play_releases(self, seeds: Sequence[int], size: int, dice: random.Random) -> Played:
        """Play pairs of releases, with and without a fault."""
        trials, pairs = [], {}
        for seed in seeds:
            pair = releases(seed, size)
            self.played.operations.update(operations_of(pair.first) | {"Releases"})
            for faulty in (False, True):
                trial = self._trial(
                    pair.first, (Fault(dice.choice(KINDS), dice.randint(1, 25)),) if faulty else ()
                )
                trial.later, trial.gate = pair.later, pair.gate
                pairs[trial.id] = pair
                trials.append(trial)
        await self._played(trials)
        for trial in trials:
            pair = pairs[trial.id]
            wrong = await faults_of(trial, parks=pair.parks, dropped=pair.dropped)
            self._note(trial, wrong)
        self.played.programs += len(seeds)
        return self.played

    async def fails(self, program: Program, faults: tuple[Fault, ...]) -> list[str]:
        """What is wrong with one program."""
        trial = self._trial(program, faults)
        try:
            await self._played([trial])
        except Stuck as stuck:
            return [str(stuck)]
        return await faults_of(trial)

    async def smallest(self, trial: Trial, wrong: list[str]) -> str:
        """The smallest program that is wrong as this one is, as text with what is wrong."""
        found: tuple[Fault, ...] = ()
        if trial.gate:  # two releases
            return told(trial, wrong)

        async def fails(program: Program) -> bool:
            nonlocal found
            for faults in {(), trial.faults, found}:
                if await self.fails(program, faults):
                    found = faults
                    return True
            if not trial.faults:
                return False
            for call in range(1, trial.faults[0].call + 1):
                faults = (replace(trial.faults[0], call=call),)
                if await self.fails(program, faults):
                    found = faults
                    return True
            return False

        program, _ = await shrunk(trial.program, fails)
        small = self._trial(program, found)
        try:
            await self._played([small])
            still = await faults_of(small)
        except Stuck as stuck:
            still = [str(stuck)]
        return told(small, still) if still else told(trial, wrong)  # not each time: the one that was seen

    def _trial(self, program: Program, faults: tuple[Fault, ...] = ()) -> Trial:
        self._numbers += 1
        return Trial(f"t{self._numbers}", program, faults, seed=self._numbers)

    async def _judged(self, trials: Sequence[Trial]) -> None:
        await self._played(trials)
        for trial in trials:
            self._note(trial, await faults_of(trial))

    def _note(self, trial: Trial, wrong: list[str]) -> None:
        self.played.trials += 1
        self.played.kills += len(trial.struck)
        self.played.runs += trial.world.runs
        if wrong:
            self.played.wrong.append((trial, wrong))

    async def _played(self, trials: Sequence[Trial]) -> None:
        for at in range(0, len(trials), _BATCH):
            clock = ManualClock()
            with self._store_of(clock) as store:
                await Fleet(store, clock).play(trials[at : at + _BATCH])


def programs_of(seeds: Sequence[int], size: int, features: frozenset[str] | None = None) -> list[Program]:
    """Programs by their seeds; each fourth one runs in a thread."""
    given = {} if features is None else {"features": features}
    return [generated(seed, size, sync=seed % 4 == 3, **given) for seed in seeds]
