"""The outcome of an attempt for each exception."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.app.outcome import error_of, outcome_of, timed_out
from penstock.client.options import Options
from penstock.core.job import AttemptError, Job, NewJob, State
from penstock.core.outcomes import Cancelled, DecodingFailed, Raised, Snoozed
from penstock.errors import AttemptTimeout, Cancel, Discard, Retry, Snooze, Undecodable

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
    assert isinstance(outcome_of(JOB, 0, Undecodable("no")), DecodingFailed)


def test_steering_that_makes_no_sense_is_the_tasks_failure() -> None:
    outcome = outcome_of(JOB, 0, Snooze("soon"))
    assert isinstance(outcome, Raised)
    assert outcome.error.kind == "ConfigError"


def test_a_retry_function_says_when() -> None:
    def function(attempt: int, error: BaseException, job: Job) -> float:
        assert (attempt, type(error), job) == (3, ValueError, JOB)
        return 1.5

    assert outcome_of(JOB, 0, ValueError(), Options(retry_function=function)).delay == 1_500  # type: ignore[union-attr]
    assert outcome_of(JOB, 0, Retry(delay=7), Options(retry_function=function)).delay == 7_000  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [ZeroDivisionError(), -1, "soon", None])
def test_a_retry_function_that_fails_leaves_the_policy_to_speak(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def function(attempt: int, error: BaseException, job: Job) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.ERROR):
        assert outcome_of(JOB, 0, ValueError(), Options(retry_function=function)).delay is None  # type: ignore[union-attr]
    assert "the default policy applies" in caplog.text


# ── the rules of a task ──────────────────────────────────────────────────────────────────────────

ONLY_SOME = Options(retry_on=(OSError, KeyError), discard_on=(FileNotFoundError,))
ALL_BUT = Options(retry_on=(ConnectionResetError,), discard_on=(OSError,))


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        (Options(), ValueError(), None),
        (ONLY_SOME, ConnectionError(), None),
        (ONLY_SOME, KeyError(), None),
        (ONLY_SOME, FileNotFoundError(), "not retried: discard_on has FileNotFoundError"),
        (ONLY_SOME, ValueError(), "not retried: retry_on has no ValueError"),
        (ALL_BUT, ConnectionResetError(), None),
        (ALL_BUT, ConnectionRefusedError(), "not retried: discard_on has OSError"),
        (ALL_BUT, ValueError(), "not retried: retry_on has no ValueError"),
        (Options(discard_on=(LookupError,)), KeyError(), "not retried: discard_on has LookupError"),
        (Options(discard_on=(LookupError,)), ValueError(), None),
        (Options(retry_on=(Exception,)), SystemExit(), "not retried: retry_on has no SystemExit"),
        (Options(retry_on=(OSError,)), Retry(), None),
        (Options(discard_on=(Exception,)), Retry(delay=1), None),
    ],
)
def test_the_class_nearest_to_the_error_has_its_way(
    options: Options, error: BaseException, why: str | None
) -> None:
    outcome = outcome_of(JOB, 0, error, options)
    assert isinstance(outcome, Raised)
    assert (outcome.final, outcome.why) == (why is not None, why)
    assert outcome.failure


@pytest.mark.parametrize(
    ("options", "final"),
    [
        (Options(), False),
        (Options(retry_on=(AttemptTimeout,)), False),
        (Options(retry_on=(TimeoutError,)), False),
        (Options(retry_on=(Exception,)), False),
        (Options(retry_on=(ValueError,)), True),
        (Options(discard_on=(TimeoutError,)), True),
        (Options(discard_on=(Exception,), retry_on=(AttemptTimeout,)), False),
    ],
)
def test_to_the_rules_an_attempts_timeout_is_a_timeout_error(options: Options, final: bool) -> None:
    fact = AttemptError(3, 0, "Timeout", "the attempt timed out")
    outcome = timed_out(JOB, fact, options)
    assert (outcome.error, outcome.final) == (fact, final)
    if final:
        assert "Timeout" in (outcome.why or "")


def test_what_is_no_failure_says_so_unless_it_is_final() -> None:
    options = Options(is_failure=lambda error: not isinstance(error, OSError), discard_on=(KeyError,))

    def is_failure(error: BaseException) -> bool:
        outcome = outcome_of(JOB, 0, error, options)
        assert isinstance(outcome, Raised)
        return outcome.failure

    assert not is_failure(ConnectionError())
    assert is_failure(ValueError())
    assert is_failure(KeyError()), "it is dead at once, whatever is_failure would say"
    assert is_failure(Retry()), "a task that steers is not asked"
    assert not timed_out(JOB, AttemptError(3, 0, "T", "t"), Options(is_failure=lambda error: False)).failure


def test_a_retry_function_speaks_for_what_is_no_failure_too() -> None:
    options = Options(is_failure=lambda error: False, retry_function=lambda attempt, error, job: 2)
    outcome = outcome_of(JOB, 0, ValueError(), options)
    assert isinstance(outcome, Raised)
    assert (outcome.failure, outcome.delay) == (False, 2_000)
