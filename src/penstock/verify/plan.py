"""Which harm is done when: drawn from the seed, so that the same seed does the same again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.verify.fault_types import KINDS

__all__ = ["LANES", "Step", "Wishes", "plan"]

#: Who does harm at the same time as the others; and the shortest and longest rest between two acts (s).
LANES: dict[str, tuple[float, float]] = {
    "processes": (0.5, 4.0),
    "store": (1.0, 4.0),
    "tasks": (0.2, 1.0),
}
#: These come so much more often than others: of their recovery there are to be figures.
_OFTEN = {"kill-worker": 4, "restart-store": 2}


@dataclass(frozen=True)
class Wishes:
    """What was asked for."""

    seconds: float
    asked: Sequence[str]  # kinds of faults
    seed: int
    workers: int = 2
    rate: float = 100.0


@dataclass(frozen=True)
class Step:
    """After this pause do that; `luck` are the numbers (0 to 1) by which it is decided to whom and how."""

    pause: float
    kind: str
    luck: tuple[float, float, float]
    first: bool  # of its kind


def plan(seed: int, lane: str, asked: Sequence[str]) -> Iterator[Step]:
    """The steps of one lane, without end: one round of all kinds, then by lot. None if it has no kinds."""
    kinds = [name for name in asked if KINDS[name].lane == lane]
    dice = random.Random(f"{seed}/{lane}")  # noqa: S311 (chaos by lot, no secret)
    round_of_all = dice.sample(kinds, len(kinds))
    for kind in round_of_all:
        yield _step(dice, lane, kind, first=True)
    while kinds:
        (kind,) = dice.choices(kinds, [_OFTEN.get(kind, 1) for kind in kinds])
        yield _step(dice, lane, kind, first=False)


def _step(dice: random.Random, lane: str, kind: str, *, first: bool) -> Step:
    pause = dice.uniform(*LANES[lane])
    return Step(pause, kind, (dice.random(), dice.random(), dice.random()), first)
