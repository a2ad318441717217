"""Which harm is done when: drawn from the seed, so that the same seed does the same again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.verify.faults.types import FAULT_TYPES

__all__ = ["AREAS", "PlannedFault", "RunRequest", "plan"]

#: Who does harm at the same time as the others; and the shortest and longest rest between two acts (s).
AREAS: dict[str, tuple[float, float]] = {
    "processes": (0.5, 4.0),
    "store": (1.0, 4.0),
    "tasks": (0.2, 1.0),
}
#: These come so much more often than others: of their recovery there are to be figures.
_OFTEN = {"kill-worker": 4, "restart-store": 2}


@dataclass(frozen=True)
class RunRequest:
    """What was asked for."""

    seconds: float
    asked: Sequence[str]  # kinds of faults
    seed: int
    workers: int = 2
    rate: float = 100.0


@dataclass(frozen=True)
class PlannedFault:
    """After this pause do that; `luck` are the numbers (0 to 1) by which it is decided to whom and how."""

    pause: float
    kind: str
    luck: tuple[float, float, float]
    first: bool  # of its kind


def plan(seed: int, area: str, asked: Sequence[str]) -> Iterator[PlannedFault]:
    """The steps of one area, without end: one round of all kinds, then by lot. None if it has no kinds."""
    kinds = [name for name in asked if FAULT_TYPES[name].area == area]
    dice = random.Random(f"{seed}/{area}")  # noqa: S311 (chaos by lot, no secret)
    round_of_all = dice.sample(kinds, len(kinds))
    for kind in round_of_all:
        yield _step(dice, area, kind, first=True)
    while kinds:
        (kind,) = dice.choices(kinds, [_OFTEN.get(kind, 1) for kind in kinds])
        yield _step(dice, area, kind, first=False)


def _step(dice: random.Random, area: str, kind: str, *, first: bool) -> PlannedFault:
    pause = dice.uniform(*AREAS[area])
    return PlannedFault(pause, kind, (dice.random(), dice.random(), dice.random()), first)
