"""Attempts that record themselves: no outcome of a call that never began, no run of one that was given back.

Process 2 is the worker, 4 and 5 are its children.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.job import State
from penstock.verify.ledger.facts import Ended, Opened, SettleAnswered, Settling, Started
from tests.verify.ledger.history_builder import QUEUE, HistoryBuilder


class _History(HistoryBuilder):
    def __init__(self) -> None:
        super().__init__()
        for child in (4, 5):
            self.write(Opened, 1, parent=2, host="h", pid=child)

    def run_in_child(self, token: str, at: float, until: float | None, *, pid: int = 4) -> None:
        id = token.split("/")[0]
        self.write(Started, at, QUEUE, id, token, "w2", 1, True, pid=pid)
        if until is not None:
            self.write(Ended, until, QUEUE, id, token, "returned", True, pid=pid)

    def settled(self, token: str, at: float, state: str, **more: Any) -> None:
        id = token.split("/")[0]
        self.write(Settling, at, QUEUE, id, token, state, pid=2, **more)
        self.write(SettleAnswered, at + 1, QUEUE, id, token, "applied", pid=2)


@pytest.fixture
def history() -> _History:
    """Three jobs, leased by the worker at 100 ms."""
    made = _History()
    for id in "abc":
        made.enqueue(id, 0, self_recorded=True)
        made.keep(id, State.COMPLETED)
    return made


def test_a_call_that_ran_in_a_child_completes_its_job(history: _History) -> None:
    for id in "abc":
        token = history.lease(id, 100)
        history.run_in_child(token, 110, 120)
        history.settled(token, 130, "completed")
    assert history.promises() == []


def test_a_job_that_is_completed_without_a_run_is_found(history: _History) -> None:
    history.settled(history.lease("a", 100), 130, "completed")
    assert _says(history, "a") == ["the job was completed, and its function never began"]


@pytest.mark.parametrize("until", [None, 140])
def test_a_job_that_is_completed_before_its_function_returns_is_found(
    history: _History, until: float | None
) -> None:
    token = history.lease("a", 100)
    history.run_in_child(token, 110, until)
    history.settled(token, 130, "completed")
    assert _says(history, "a") == ["the job was completed, and its function had not returned"]


def test_the_death_of_a_child_costs_only_what_it_ran(history: _History) -> None:
    """Each child that died in no recorded call may have died before its function could record its start."""
    tokens = [history.lease(id, 100) for id in "abc"]
    history.run_in_child(tokens[0], 110, None)
    for id, token in zip("abc", tokens, strict=True):
        history.keep(id, State.RETRYABLE)
        history.settled(token, 130, "retryable", error="ChildDied")
    said = "an attempt was charged with ChildDied, and its function had not begun"
    assert [_says(history, id) for id in "abc"] == [[], [], [said]]


def test_a_call_that_is_given_back_and_runs_in_another_worker_is_no_finding(history: _History) -> None:
    history.settled(history.lease("a", 100), 130, "available", charge=False)
    token = history.lease("a", 140)
    history.run_in_child(token, 150, 160)
    history.settled(token, 170, "completed")
    assert _says(history, "a") == []


def test_a_call_that_runs_after_it_was_given_back_is_found(history: _History) -> None:
    token = history.lease("a", 100)
    history.keep("a", State.AVAILABLE)
    history.settled(token, 130, "available", charge=False)
    history.run_in_child(token, 150, 160)
    assert _says(history, "a") == ["the function ran although its worker had released the job"]


def test_two_children_with_the_same_call_are_found(history: _History) -> None:
    token = history.lease("a", 100)
    history.run_in_child(token, 110, None)
    history.run_in_child(token, 115, 120, pid=5)
    history.settled(token, 130, "completed")
    assert _says(history, "a") == [f"processes 4 and 5 both ran it under lease {token}"]


def test_jobs_whose_attempts_a_middleware_records_are_not_held_to_it() -> None:
    history = _History()
    history.enqueue("a", 0)
    history.keep("a", State.COMPLETED)
    history.settled(history.lease("a", 100), 130, "completed")
    assert history.promises() == []


def _says(history: _History, id: str) -> list[str]:
    """What the rules say of this job; its end in the store is not the subject here."""
    findings = history.verdict_on(finished=False).findings
    return [one.says for one in findings if one.id == id and one.promise in ("attempts", "fencing")]
