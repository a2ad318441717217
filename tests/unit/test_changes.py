"""The table of acts: what each makes of a job in each state."""

from __future__ import annotations

import pytest

from penstock.core.changes import ACTS, ChangeKind, JobChange, change_of
from penstock.core.job import TERMINAL, State
from penstock.core.lifecycle import LEGAL
from penstock.core.outcomes import QueuePosition
from tests.cases import each

S, A, R, T = State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE
C, X, D, P = State.COMPLETED, State.CANCELLED, State.DEAD, State.PARKED
W, G, U = State.WAITING, State.COLLECTING, State.SUSPENDED

#: The new state by the old one; a state that is not named stays.
AFTER: dict[tuple[ChangeKind, bool], dict[State, State]] = {
    (ChangeKind.RETRY, False): dict.fromkeys((S, A, T, C, X, D, P, W, G, U), A),
    (ChangeKind.RESCHEDULE, False): dict.fromkeys((S, A, T, W, G), A),
    (ChangeKind.RESCHEDULE, True): dict.fromkeys((S, A, T, W, G), S),
    (ChangeKind.DISCARD, False): dict.fromkeys((S, A, T, P, W, G, U), D),
    (ChangeKind.COMPLETE, False): dict.fromkeys((S, A, T, P, W, G, U, X, D), C),
}


@each("state", State)
@each("kind, later", AFTER)
def test_an_act_makes_of_a_state_what_the_table_says(kind: ChangeKind, later: bool, state: State) -> None:
    change = change_of(kind, state, later=later)
    assert (change and change.state) == AFTER[kind, later].get(state)
    if change is None:
        return
    at_tail = change.state is A
    assert change.place is (QueuePosition.TAIL if at_tail else QueuePosition.OWN)
    assert change.anew == (kind is ChangeKind.RETRY)
    if G not in (state, change.state):  # members of batches are the store's
        assert (state, change.state) in LEGAL


@pytest.mark.parametrize("kind", ACTS)
def test_a_running_job_stays(kind: ChangeKind) -> None:
    assert change_of(kind, R) is None
    assert change_of(kind, R, later=True) is None


@pytest.mark.parametrize("kind", [ChangeKind.RETRY, ChangeKind.DISCARD, ChangeKind.COMPLETE])
def test_only_a_reschedule_is_for_later(kind: ChangeKind) -> None:
    assert [change_of(kind, state, later=True) for state in State] == [
        change_of(kind, state) for state in State
    ]


def test_an_end_changes_nothing_but_the_state() -> None:
    ends = {change for row in ACTS.values() for change in row.values() if change.state in TERMINAL}
    assert ends == {JobChange(D), JobChange(C)}
