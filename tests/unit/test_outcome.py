"""What an exception says about an attempt."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.errors import Cancel, Discard, Retry, Snooze, Undecodable
from penstock.job import Job, NewJob, State
from penstock.lifecycle import Cancelled, Raised, Snoozed
from penstock.lifecycle import Undecodable as NotDecodable
from penstock.outcome import error_of, outcome_of

JOB = Job(NewJob("id", "task"), State.RUNNING, attempt=3)


def test_an_exception_is_a_failure_with_its_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        outcome = outcome_of(JOB, 1_000, error)
    assert isinstance(outcome, Raised)
    assert (outcome.delay, outcome.final) == (None, False)
    assert (outcome.error.attempt, outcome.error.at, outcome.error.kind) == (3, 1_000, "ValueError")
    assert 'raise ValueError("no")' in outcome.error.traceback


def test_an_exception_without_words_is_named() -> None:
    assert error_of(JOB, 0, KeyError()).message == "KeyError"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Snooze("5m"), Snoozed(300_000)),
        (Cancel("enough"), Cancelled("enough")),
    ],
)
def test_steering_is_taken_at_its_word(error: Exception, outcome: Any) -> None:
    assert outcome_of(JOB, 0, error) == outcome


def test_a_retry_may_bring_its_own_delay() -> None:
    assert outcome_of(JOB, 0, Retry(delay=7)).delay == 7_000  # type: ignore[union-attr]
    assert outcome_of(JOB, 0, Retry()).delay is None  # type: ignore[union-attr]


def test_a_discard_is_final() -> None:
    assert outcome_of(JOB, 0, Discard("no")).final  # type: ignore[union-attr]


def test_a_payload_that_cannot_be_read_is_no_failure_of_the_task() -> None:
    assert isinstance(outcome_of(JOB, 0, Undecodable("no")), NotDecodable)


def test_steering_that_makes_no_sense_is_the_tasks_failure() -> None:
    outcome = outcome_of(JOB, 0, Snooze("soon"))
    assert isinstance(outcome, Raised)
    assert outcome.error.kind == "ConfigError"


def test_a_retry_function_says_when() -> None:
    def function(attempt: int, error: BaseException, job: Job) -> float:
        assert (attempt, type(error), job) == (3, ValueError, JOB)
        return 1.5

    assert outcome_of(JOB, 0, ValueError(), function).delay == 1_500  # type: ignore[union-attr]
    assert outcome_of(JOB, 0, Retry(delay=7), function).delay == 7_000  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [ZeroDivisionError(), -1, "soon", None])
def test_a_retry_function_that_fails_leaves_the_policy_to_speak(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def function(attempt: int, error: BaseException, job: Job) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.ERROR):
        assert outcome_of(JOB, 0, ValueError(), function).delay is None  # type: ignore[union-attr]
    assert "the default policy applies" in caplog.text
