"""Durable steps keep their promises in every reachable state, and each broken variant is detected.

`step_protocol.py` is the model. The programs are as small as a rule allows.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.checker import Checked, explore
from tests.model.step_protocol import (
    Answer,
    End,
    J,
    Operation,
    Run,
    StepProtocol,
    StepWorld,
)

LOOP = (
    Operation("x of 1", "step", "!step/a/rows[1]/x"),
    Operation("x of 2", "step", "!step/a/rows[2]/x"),
)
BEHIND = Operation("x behind", "step", "!step/a/x")
RESERVE = Operation("reserve", "step", "!step/b/reserve", fails=True, caught=True)
REFUND = Operation("refund", "step", "!step/b/refund", after=("reserve", "failed"))
CHARGE = Operation("charge", "step", "!step/b/charge", fails=True)
SHIP = Operation("ship", "step", "!step/b/ship")
GO = Operation("go", "wait", "!wait/b/go")
TIMED = Operation("go", "wait", "!wait/b/go", timeout=True)
MOVED = Operation("go", "wait", "!wait/a/go")

CAUGHT = ((*LOOP, BEHIND), (RESERVE, REFUND, TIMED))
UNCAUGHT = (LOOP, (CHARGE, GO, SHIP))
ANOTHER = (LOOP, (CHARGE._replace(head="g"), SHIP))
ADDED = (
    (LOOP[0], Operation("new", "step", "!step/a/rows[2]/new"), LOOP[1]),
    (RESERVE, Operation("new in b", "step", "!step/b/new"), REFUND),
)


def always(model: StepProtocol) -> dict[str, Any]:
    failures = {one.label: one for release in model.releases for branch in release for one in branch}

    def an_answer_is_its_own_and_never_changes(state: StepWorld) -> bool:
        return not state.wrong

    def no_effect_beyond_one_and_kills(state: StepWorld) -> bool:
        excused = dict(state.excused)
        return all(
            calls <= 1 + excused.get(label, 0) + (failures[label].fails and not failures[label].caught)
            for label, calls in state.calls
        )

    def no_signal_is_lost(state: StepWorld) -> bool:
        """One that was taken is the answer of the wait, or will be."""
        if state.signal != "taken" or model.late_signal:
            return True
        if dict(state.answers).get("go", Answer("", "", "")).value == "timeout":
            return False
        return any(answer is not None and answer.value == "signal" for _, answer in state.job.steps)

    rules = (an_answer_is_its_own_and_never_changes, no_effect_beyond_one_and_kills, no_signal_is_lost)
    return {rule.__name__: rule for rule in rules}


def a_stale_run_changes_nothing(before: StepWorld, what: Any, after: StepWorld) -> bool:
    if not what.who.startswith("run ") or what.who == f"run {before.job.token}":
        return True
    return after.job == before.job and after.signal == before.signal


END = (
    "the flow ends",
    lambda state: state.job.state in (J.COMPLETED, J.PARKED),
)


def check(model: StepProtocol) -> Checked[StepWorld]:
    each_step = {"a_stale_run_changes_nothing": a_stale_run_changes_nothing}
    return explore(model, always=always(model), each_step=each_step, end=END)


# ── the protocol ─────────────────────────────────────────────────────────────────────────────────

#: What is looked at, and how many states there are at least.
LOOKED_AT: dict[str, tuple[StepProtocol, int]] = {
    "a caught failure, a loop and a timeout, one fault": (StepProtocol(CAUGHT, faults=1), 2_000),
    "a caught failure and a timeout, two faults": (StepProtocol(((), CAUGHT[1]), faults=2), 2_000),
    "a failure that ends an attempt, one fault": (StepProtocol(UNCAUGHT, faults=1), 1_000),
    "a failure that ends an attempt, two faults": (StepProtocol(((), UNCAUGHT[1]), faults=2), 1_000),
    "operations are added, one fault": (StepProtocol((LOOP, (RESERVE, REFUND)), ADDED, faults=1), 5_000),
    "something else is asked for, one fault": (StepProtocol(UNCAUGHT, ANOTHER, faults=1), 1_000),
    "a wait is moved, two faults": (
        StepProtocol(((), (GO,)), ((MOVED,), ()), faults=2, late_signal=True),
        100,
    ),
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_every_promise_holds_in_every_state(name: str) -> None:
    model, floor = LOOKED_AT[name]
    found = check(model)
    print(f"{name}: {found}")
    assert found.wrong is None, str(found.wrong)
    assert found.states >= floor
    assert found.ends


def _ends(before: StepWorld, what: Any, after: StepWorld) -> list[J]:
    return [after.job.state]


@pytest.mark.parametrize(("later", "parks"), [(UNCAUGHT, False), (ANOTHER, True)], ids=["same", "another"])
def test_a_flow_is_parked_only_if_something_else_is_asked_for(later: Any, parks: bool) -> None:
    model = StepProtocol(((), UNCAUGHT[1]), ((), later[1]), faults=1)
    seen = explore(model, always={}, note=_ends).seen
    assert J.COMPLETED in seen
    assert (J.PARKED in seen) == parks


# ── broken ones ──────────────────────────────────────────────────────────────────────────────────


class DoesNotCheckTheToken(StepProtocol):
    def holds(self, state: StepWorld, run: Run) -> bool:
        return state.job.state is J.RUNNING


class CountsOverAllBranches(StepProtocol):
    """The number of use is that of the name, whichever branch uses it."""

    def name_of(self, run: Run, b: int, one: Operation) -> str:
        base = one.name.rpartition("/")[2]
        before = (
            other.name.rpartition("/")[2]
            for branch, state in zip(self.operations(run), run.branches, strict=True)
            for other in branch[: state.at]
        )
        return f"{base}#{sum(other == base for other in before) + 1}"


class LoopsWithoutACursor(StepProtocol):
    """An item of a loop is not part of the names of what is in it."""

    def name_of(self, run: Run, b: int, one: Operation) -> str:
        return one.name.replace("[1]", "").replace("[2]", "")


class DoesNotStoreFailures(StepProtocol):
    def stores_failures(self) -> bool:
        return False


class DoesNotForgetFailures(StepProtocol):
    def to_forget(self, run: Run) -> tuple[str, ...]:
        return () if run.end is End.FAILS_WITH else super().to_forget(run)


class ForgetsFailuresThatWereCaught(StepProtocol):
    def to_forget(self, run: Run) -> tuple[str, ...]:
        failures = tuple(name for name, _ in run.known if name.endswith("!failed"))
        return failures if run.end is End.FAILS else super().to_forget(run)


class DoesNotWithdrawWaits(StepProtocol):
    def to_forget(self, run: Run) -> tuple[str, ...]:
        return () if run.end is End.SUSPENDS else super().to_forget(run)


class SuspendsThoughTheSignalHasCome(StepProtocol):
    def looks_for_signals(self) -> bool:
        return False


class OverwritesASignalWithATimeout(StepProtocol):
    def signal_stays(self) -> bool:
        return False


class DoesNotCompareWhatIsAsked(StepProtocol):
    def asks_else(self, stored: Answer, one: Operation) -> bool:
        return False


class EndsWhileAFunctionRuns(StepProtocol):
    def waits_for_functions(self) -> bool:
        return False


OWN = "an_answer_is_its_own_and_never_changes"
ONCE = "no_effect_beyond_one_and_kills"
TWO = ((Operation("x of a", "step", "!step/a/x"),), (Operation("x of b", "step", "!step/b/x"),))

#: The variant, the promise that it breaks, and the most steps of the way there.
BROKEN: list[tuple[StepProtocol, str, int]] = [
    (DoesNotCheckTheToken(((), UNCAUGHT[1])), "a_stale_run_changes_nothing", 6),
    (CountsOverAllBranches(TWO), OWN, 10),
    (LoopsWithoutACursor((LOOP, ()), faults=0), OWN, 4),
    (DoesNotStoreFailures(((), CAUGHT[1])), ONCE, 6),
    (DoesNotForgetFailures(((), UNCAUGHT[1]), faults=0), END[0], 4),
    (ForgetsFailuresThatWereCaught(((), CAUGHT[1])), ONCE, 9),
    (DoesNotWithdrawWaits(((), (GO,)), ((MOVED,), ()), faults=0, late_signal=True), END[0], 13),
    (SuspendsThoughTheSignalHasCome(((), (GO,)), faults=0), END[0], 7),
    (OverwritesASignalWithATimeout(((), (TIMED,)), faults=0), "no_signal_is_lost", 9),
    (DoesNotCompareWhatIsAsked(UNCAUGHT, ANOTHER), OWN, 12),
    (EndsWhileAFunctionRuns(((BEHIND,), (CHARGE,)), faults=0), ONCE, 9),
]


@pytest.mark.parametrize(("model", "promise", "steps"), BROKEN, ids=[type(m).__name__ for m, *_ in BROKEN])
def test_a_broken_variant_is_caught(model: StepProtocol, promise: str, steps: int) -> None:
    wrong = check(model).wrong
    assert wrong is not None
    assert wrong.broken == promise, str(wrong)
    assert len(wrong.steps) <= steps, str(wrong)


def test_every_promise_is_broken_by_some_variant() -> None:
    model = BROKEN[0][0]
    asked = {*always(model), a_stale_run_changes_nothing.__name__, END[0]}
    assert {promise for _, promise, _ in BROKEN} == asked
