"""The model checker visits every state, and finds the nearest violation with its path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.checker import Step, explore


class Jugs:
    """Three and five litres, and four of them asked for."""

    def first(self) -> tuple[int, int]:
        return 0, 0

    def steps(self, state: tuple[int, int]) -> Iterator[Step]:
        three, five = state
        yield Step("fill the small one", (3, five))
        yield Step("fill the large one", (three, 5))
        yield Step("empty the small one", (0, five))
        yield Step("empty the large one", (three, 0))
        over = min(three, 5 - five)
        yield Step("pour into the large one", (three - over, five + over))
        back = min(five, 3 - three)
        yield Step("pour into the small one", (three + back, five - back))

    def plain(self, state: tuple[int, int]) -> tuple[int, int]:
        return state


class Walk:
    """From 0 up, and never back from 3; a left turn is as good as a right one."""

    def first(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[Step]:
        if abs(state) < 3:
            yield Step("right", state + 1)
            yield Step("left", state - 1, helps=False)

    def plain(self, state: int) -> int:
        return abs(state)


def test_it_sees_every_state_once() -> None:
    found = explore(Jugs(), always={})
    assert (found.states, found.steps, found.wrong) == (16, 96, None)


def test_it_shows_the_shortest_way_to_what_must_not_be() -> None:
    found = explore(Jugs(), always={"never four": lambda state: state[1] != 4})
    assert found.wrong is not None
    assert found.wrong.broken == "never four"
    assert found.wrong.steps == [
        "fill the large one",
        "pour into the small one",
        "empty the small one",
        "pour into the small one",
        "fill the large one",
        "pour into the small one",
    ]
    assert found.wrong.state == (3, 4)


def test_a_step_may_be_what_must_not_be() -> None:
    found = explore(
        Jugs(), always={}, each_step={"spill nothing": lambda before, _, after: sum(after) >= sum(before)}
    )
    assert found.wrong is not None
    assert found.wrong.steps == ["fill the small one", "empty the small one"]


def test_where_no_end_can_be_reached_any_more_is_wrong() -> None:
    assert explore(Walk(), always={}, end=("three", lambda state: state == 3)).wrong is None
    found = explore(Walk(), always={}, end=("two", lambda state: state == 2))
    assert found.wrong is not None
    assert str(found.wrong) == "two\n  1. right\n  2. right\n  3. right\n  then: 3"


def test_only_steps_that_help_lead_to_an_end() -> None:
    class Down(Walk):
        def steps(self, state: int) -> Iterator[Step]:
            yield Step("in", state + 1 if state < 3 else state, helps=False)

    found = explore(Down(), always={}, end=("three", lambda state: state == 3))
    assert found.wrong is not None
    assert found.wrong.steps == []


def test_a_model_without_a_bound_is_said_to_be_one() -> None:
    class Up(Walk):
        def steps(self, state: int) -> Iterator[Step]:
            yield Step("up", state + 1)

    with pytest.raises(ValueError, match="more than 100 states"):
        explore(Up(), always={}, most=100)
