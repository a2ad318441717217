"""StoreClock: how far the store's clock is past a reading."""

from __future__ import annotations

import random

import pytest

from penstock.maintenance import promoter
from penstock.maintenance.promoter import StoreClock

NOW = 1_700_000_000.0


class Clocks:
    """The clock of this process, and that of the store, which is `ahead` seconds ahead."""

    def __init__(self) -> None:
        self.here = 1_000.0
        self.ahead = NOW

    def monotonic(self) -> float:
        return self.here

    def reading(self) -> int:
        return int((self.here + self.ahead) * 1000)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(promoter, "time", made)
    return made


def asked(clock: StoreClock, clocks: Clocks, there: float = 0.0002, back: float = 0.0002) -> float:
    """Ask the store; returns by how much (s) its clock is taken to be ahead of what it is."""
    sent = clocks.here
    clocks.here += there
    now = clocks.reading()
    clocks.here += back
    past = clock.take(now, sent)
    return now / 1000 + past - (clocks.here + clocks.ahead)


def test_one_reading_is_half_a_millisecond_wrong_at_most(clocks: Clocks) -> None:
    for _ in range(100):
        clocks.here += random.random()
        assert abs(asked(StoreClock(), clocks)) < 0.001


def test_readings_at_other_moments_make_it_exact(clocks: Clocks) -> None:
    clock, error = StoreClock(), 1.0
    for _ in range(200):
        clocks.here += random.uniform(0.001, 0.01)
        error = asked(clock, clocks)
    assert abs(error) < 0.0003


def test_questions_that_are_due_at_whole_milliseconds_make_it_exact_too(clocks: Clocks) -> None:
    clock, error = StoreClock(), 0.0
    for _ in range(30):  # as the promoter asks: when it believes that the clock shows a whole millisecond
        there = clocks.here + clocks.ahead + error
        clocks.here += 0.01 - there % 0.001
        error = asked(clock, clocks)
    assert abs(error) < 0.0003


@pytest.mark.parametrize("jump", [-3600.0, -0.05, 0.05, 3600.0])
def test_a_clock_that_was_set_is_followed_at_once(clocks: Clocks, jump: float) -> None:
    clock = StoreClock()
    for _ in range(20):
        clocks.here += 0.0137
        asked(clock, clocks)
    clocks.ahead += jump
    assert abs(asked(clock, clocks)) < 0.001


@pytest.mark.parametrize("drift", [-4e-5, 4e-5])
def test_clocks_that_drift_apart_stay_known(clocks: Clocks, drift: float) -> None:
    clock = StoreClock()
    for _ in range(1_000):
        clocks.here += 5.0
        clocks.ahead += 5.0 * drift
        assert abs(asked(clock, clocks)) < 0.001


def test_an_answer_that_came_late_does_not_mislead(clocks: Clocks) -> None:
    clock = StoreClock()
    for _ in range(50):
        clocks.here += 0.0137
        asked(clock, clocks)
    assert abs(asked(clock, clocks, back=2.0)) < 0.001
    assert abs(asked(clock, clocks, there=2.0)) < 0.001


def test_a_reading_whose_question_is_unknown_bounds_the_clock_from_below(clocks: Clocks) -> None:
    clock = StoreClock()
    now = clocks.reading()
    clocks.here += 0.02
    assert clock.take(now) == 0.0
    assert 0.0 <= clock.take(now - 5) < 0.006
