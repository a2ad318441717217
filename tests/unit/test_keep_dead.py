"""The setting `keep_dead` applies to each dying job without its own value, and to no other."""

from __future__ import annotations

import pytest

from penstock.core.job import DEAD_KEPT, AttemptError, Job, NewJob, State
from penstock.core.lifecycle import decide
from penstock.core.outcomes import DecodingFailed, LeaseLost, Raised, Returned, TimedOut

ERROR = AttemptError(1, 0, "ValueError", "boom")
HOUR = 3_600_000


def last_attempt(**facts) -> Job:
    return Job(NewJob("a", "t", max_attempts=1, **facts), State.RUNNING, attempt=1)


@pytest.mark.parametrize(
    "outcome",
    [Raised(ERROR), Raised(ERROR, final=True), TimedOut(ERROR), LeaseLost(ERROR), DecodingFailed(ERROR)],
)
def test_a_dead_job_is_kept_as_long_as_the_setting_says(outcome):
    assert decide(last_attempt(), outcome, 0).keep == DEAD_KEPT
    move = decide(last_attempt(), outcome, 0, keep_dead=HOUR)
    assert (move.state, move.keep) == (State.DEAD, HOUR)


def test_a_job_that_asks_for_longer_is_kept_longer():
    assert decide(last_attempt(retention=2 * HOUR), Raised(ERROR), 0, keep_dead=HOUR).keep == 2 * HOUR


@pytest.mark.parametrize("own", [0, 5, 3 * HOUR])
def test_what_the_job_itself_says_is_exact(own):
    dying = last_attempt(keep_dead=own, retention=2 * HOUR)
    assert decide(dying, Raised(ERROR), 0).keep == own
    assert decide(dying, Raised(ERROR), 0, keep_dead=HOUR).keep == own
    assert decide(dying, Returned(), 0).keep == 2 * HOUR


def test_a_completed_job_does_not_mind_the_setting():
    assert decide(last_attempt(retention=7), Returned(), 0, keep_dead=HOUR).keep == 7
