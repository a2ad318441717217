"""The lifecycle: from outcome to transition; and the table of legal steps that the docs print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.job import DEAD_KEPT, FINISHED_KEPT, TERMINAL, AttemptError, Job, NewJob, State
from penstock.core.lifecycle import (
    EXPIRED,
    LEGAL,
    LOST_BY,
    NO_FAILURE_FOR,
    Transition,
    decide,
    first_state,
    kept,
    limit_passed,
    released,
    starts_on_record,
    too_late,
)
from penstock.core.outcomes import (
    Cancelled,
    DeadlinePassed,
    DecodingFailed,
    Expired,
    LeaseLost,
    Outcome,
    QueuePosition,
    Raised,
    Released,
    Returned,
    Snoozed,
    Suspended,
    Throttled,
    TimedOut,
    Unknown,
)
from penstock.core.relations import Partition
from penstock.retry import Exponential, Fixed
from tests.cases import each

NOW = 1_700_000_000_000
DAY = 86_400_000
DOC = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"

SPEC = NewJob("id", "mail.send", max_attempts=3, retry=Fixed(7_000), retention=60_000)
JOB = Job(SPEC, State.RUNNING, attempt=1, token="t")
ERROR = AttemptError(1, NOW, "ValueError", "no luck")


def job(*, attempt: int = 1, lost: int = 0, **spec: object) -> Job:
    return replace(JOB, attempt=attempt, lost=lost, spec=replace(SPEC, **spec))


# ── decide, outcome by outcome ──

DEAD = {"state": State.DEAD, "keep": DEAD_KEPT, "error": ERROR}
LUCK = "ValueError: no luck"
ONCE = "at-most-once: a started attempt never starts again"
MAYBE = "at-most-once: its attempt was lost after it may have started"

NO_FAILURE = "no failure: ValueError: no luck"


def young(age: int = 0, **more: Any) -> Job:
    """A job that was enqueued so long ago."""
    return replace(job(**more), enqueued_at=NOW - age)


THROTTLED: dict[str, Any] = {
    "state": State.AVAILABLE,
    "place": QueuePosition.HEAD,
    "charge": False,
    "reason": "throttled: no luck",
    "throttle": 500,
}

TABLE: list[tuple[str, Job, Outcome, Transition]] = [
    ("returned", JOB, Returned(), Transition(State.COMPLETED, keep=60_000)),
    ("returned, nothing kept", job(retention=0), Returned(), Transition(State.COMPLETED, keep=0)),
    ("raised", JOB, Raised(ERROR), Transition(State.RETRYABLE, delay=7_000, error=ERROR)),
    (
        "raised before the last attempt",
        job(attempt=2),
        Raised(ERROR),
        Transition(State.RETRYABLE, delay=7_000, error=ERROR),
    ),
    (
        "raised in the last attempt",
        job(attempt=3),
        Raised(ERROR),
        Transition(**DEAD, reason="all 3 attempts failed"),
    ),
    (
        "raised beyond the last attempt",
        job(attempt=4),
        Raised(ERROR),
        Transition(**DEAD, reason="all 3 attempts failed"),
    ),
    (
        "raised, with a delay of its own",
        JOB,
        Raised(ERROR, delay=90),
        Transition(State.RETRYABLE, delay=90, error=ERROR),
    ),
    (
        "raised, and again at once",
        JOB,
        Raised(ERROR, delay=0),
        Transition(State.AVAILABLE, place=QueuePosition.TAIL, error=ERROR),
    ),
    (
        "raised, with a policy of no wait",
        job(retry=Fixed(0)),
        Raised(ERROR),
        Transition(State.AVAILABLE, place=QueuePosition.TAIL, error=ERROR),
    ),
    (
        "raised with a delay of its own in the last attempt",
        job(attempt=3),
        Raised(ERROR, delay=90),
        Transition(**DEAD, reason="all 3 attempts failed"),
    ),
    ("discarded", JOB, Raised(ERROR, final=True), Transition(**DEAD, reason=LUCK)),
    (
        "raised past the deadline",
        job(deadline=NOW),
        Raised(ERROR),
        Transition(**DEAD, reason="its deadline has passed"),
    ),
    (
        "raised before the deadline",
        job(deadline=NOW + 7_001),
        Raised(ERROR),
        Transition(State.RETRYABLE, delay=7_000, error=ERROR),
    ),
    (
        "raised before the deadline, and the next attempt would come after it",
        job(deadline=NOW + 7_000),
        Raised(ERROR),
        Transition(**DEAD, reason="its deadline passes before its next attempt"),
    ),
    (
        "fetched past the deadline",
        job(deadline=NOW),
        DeadlinePassed(),
        Transition(
            State.DEAD,
            keep=DEAD_KEPT,
            charge=False,
            error=AttemptError(1, NOW, "DeadlinePassed", "it was not started before its deadline"),
            reason="its deadline has passed",
        ),
    ),
    ("raised, at most once", job(at_most_once=True), Raised(ERROR), Transition(**DEAD, reason=ONCE)),
    ("timed out", JOB, TimedOut(ERROR), Transition(State.RETRYABLE, delay=7_000, error=ERROR)),
    (
        "timed out in the last attempt",
        job(attempt=3),
        TimedOut(ERROR),
        Transition(**DEAD, reason="all 3 attempts failed"),
    ),
    ("timed out, at most once", job(at_most_once=True), TimedOut(ERROR), Transition(**DEAD, reason=ONCE)),
    (
        "timed out, and its task says that this is final",
        JOB,
        TimedOut(ERROR, final=True, why="not tried again"),
        Transition(**DEAD, reason="not tried again"),
    ),
    (
        "raised, and its task says that this is final",
        JOB,
        Raised(ERROR, final=True, why="not tried again"),
        Transition(**DEAD, reason="not tried again"),
    ),
    (
        "raised what is no failure",
        young(),
        Raised(ERROR, failure=False),
        Transition(State.RETRYABLE, delay=7_000, charge=False, reason=NO_FAILURE),
    ),
    (
        "raised what is no failure in the last attempt",
        young(attempt=3),
        Raised(ERROR, failure=False),
        Transition(State.RETRYABLE, delay=7_000, charge=False, reason=NO_FAILURE),
    ),
    (
        "timed out, which is no failure",
        young(attempt=3),
        TimedOut(ERROR, failure=False),
        Transition(State.RETRYABLE, delay=7_000, charge=False, reason=NO_FAILURE),
    ),
    (
        "raised what is no failure, at most once",
        young(at_most_once=True),
        Raised(ERROR, failure=False),
        Transition(**DEAD, reason=ONCE),
    ),
    (
        "raised what is no failure past the deadline",
        young(deadline=NOW),
        Raised(ERROR, failure=False),
        Transition(**DEAD, reason="its deadline has passed"),
    ),
    (
        "raised what is no failure for too long",
        young(NO_FAILURE_FOR),
        Raised(ERROR, failure=False),
        Transition(State.RETRYABLE, delay=7_000, error=ERROR),
    ),
    (
        "raised what is no failure for too long, in the last attempt",
        young(NO_FAILURE_FOR, attempt=3),
        Raised(ERROR, failure=False),
        Transition(**DEAD, reason="all 3 attempts failed"),
    ),
    (
        "raised what is no failure, long after its enqueue but not after it was due",
        young(NO_FAILURE_FOR, delay=1),
        Raised(ERROR, failure=False),
        Transition(State.RETRYABLE, delay=7_000, charge=False, reason=NO_FAILURE),
    ),
    ("undecodable", JOB, DecodingFailed(ERROR), Transition(**DEAD, reason=LUCK)),
    (
        "throttled",
        young(),
        Throttled(ERROR, 500),
        Transition(**THROTTLED),
    ),
    (
        "throttled in the last attempt",
        young(attempt=3),
        Throttled(ERROR, 500),
        Transition(**THROTTLED),
    ),
    (
        "throttled for a week: from now on it is a failure",
        young(NO_FAILURE_FOR),
        Throttled(ERROR, 500),
        Transition(State.RETRYABLE, delay=500, error=ERROR, throttle=500),
    ),
    (
        "throttled, of a partition",
        young(partition=Partition("k")),
        Throttled(ERROR, 500),
        Transition(**{**THROTTLED, "throttle": 0, "throttle_partition": 500}),
    ),
    (
        "throttled, of a partition, for its whole queue",
        young(partition=Partition("k")),
        Throttled(ERROR, 500, partition=False),
        Transition(**THROTTLED),
    ),
    (
        "throttled for a week, of a partition",
        young(NO_FAILURE_FOR, partition=Partition("k")),
        Throttled(ERROR, 500),
        Transition(State.RETRYABLE, delay=500, error=ERROR, throttle_partition=500),
    ),
    ("suspended", JOB, Suspended(500), Transition(State.SUSPENDED, delay=500, charge=False)),
    (
        "suspended beyond its deadline: it is due just after it",
        job(deadline=NOW + 300),
        Suspended(500),
        Transition(State.SUSPENDED, delay=400, charge=False),
    ),
    (
        "suspended after its deadline",
        job(deadline=NOW - 1),
        Suspended(500),
        Transition(State.SUSPENDED, delay=100, charge=False),
    ),
    (
        "suspended for less time than its deadline leaves",
        job(deadline=NOW + 501),
        Suspended(500),
        Transition(State.SUSPENDED, delay=500, charge=False),
    ),
    ("snoozed", JOB, Snoozed(500), Transition(State.SCHEDULED, delay=500, charge=False)),
    (
        "snoozed in the last attempt",
        job(attempt=3),
        Snoozed(500),
        Transition(State.SCHEDULED, delay=500, charge=False),
    ),
    (
        "snoozed for no time: what costs no attempt must not spin",
        JOB,
        Snoozed(0),
        Transition(State.SCHEDULED, delay=100, charge=False),
    ),
    (
        "snoozed for less than the least",
        JOB,
        Snoozed(99),
        Transition(State.SCHEDULED, delay=100, charge=False),
    ),
    (
        "no failure, with a policy of no wait",
        young(retry=Fixed(0)),
        Raised(ERROR, failure=False),
        Transition(State.RETRYABLE, delay=100, charge=False, reason=NO_FAILURE),
    ),
    (
        "no failure, at once by its own word",
        young(),
        Raised(ERROR, delay=0, failure=False),
        Transition(State.RETRYABLE, delay=100, charge=False, reason=NO_FAILURE),
    ),
    (
        "a failure, with a policy of no wait: each attempt counts, so it comes to an end",
        young(retry=Fixed(0)),
        Raised(ERROR),
        Transition(State.AVAILABLE, error=ERROR),
    ),
    (
        "cancelled",
        JOB,
        Cancelled("paid"),
        Transition(State.CANCELLED, keep=FINISHED_KEPT, reason="paid"),
    ),
    (
        "cancelled, kept for its retention",
        job(retention=DAY),
        Cancelled(),
        Transition(State.CANCELLED, keep=DAY, reason="cancelled"),
    ),
    (
        "expired",
        JOB,
        Expired(),
        Transition(State.CANCELLED, keep=FINISHED_KEPT, reason=EXPIRED, charge=False),
    ),
    (
        "unknown",
        JOB,
        Unknown(),
        Transition(
            State.PARKED,
            place=QueuePosition.OWN,
            charge=False,
            reason="no worker here knows the task 'mail.send'",
        ),
    ),
    ("released", JOB, Released(), Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False)),
    (
        "released to its own place",
        JOB,
        Released(QueuePosition.OWN),
        Transition(State.AVAILABLE, place=QueuePosition.OWN, charge=False),
    ),
    (
        "lost before it started",
        JOB,
        LeaseLost(ERROR, started=False),
        Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, lost=True),
    ),
    (
        "lost before it started, at most once",
        job(at_most_once=True, attempt=3),
        LeaseLost(ERROR, started=False),
        Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, lost=True),
    ),
    (
        "lost for the first time",
        JOB,
        LeaseLost(ERROR),
        Transition(State.AVAILABLE, place=QueuePosition.HEAD, error=ERROR, lost=True),
    ),
    (
        "lost for the second time",
        job(lost=1, attempt=2),
        LeaseLost(ERROR),
        Transition(State.RETRYABLE, delay=7_000, error=ERROR, lost=True),
    ),
    (
        "lost again, with a policy of no wait",
        job(lost=1, retry=Fixed(0)),
        LeaseLost(ERROR),
        Transition(State.AVAILABLE, place=QueuePosition.HEAD, error=ERROR, lost=True),
    ),
    (
        "lost in the last attempt",
        job(attempt=3),
        LeaseLost(ERROR),
        Transition(**DEAD, lost=True, reason="all 3 attempts failed"),
    ),
    (
        "lost past the deadline",
        job(deadline=NOW - 1),
        LeaseLost(ERROR),
        Transition(**DEAD, lost=True, reason="its deadline has passed"),
    ),
    (
        "lost, at most once",
        job(at_most_once=True),
        LeaseLost(ERROR),
        Transition(**DEAD, lost=True, reason=MAYBE),
    ),
    (
        "lost before it started, but its fetch starts it",
        job(fetch_starts=True),
        LeaseLost(ERROR, started=False),
        Transition(State.AVAILABLE, place=QueuePosition.TAIL, error=ERROR, lost=True),
    ),
    (
        "lost again, and its fetch starts it",
        job(fetch_starts=True, lost=1, attempt=2),
        LeaseLost(ERROR),
        Transition(State.AVAILABLE, place=QueuePosition.TAIL, error=ERROR, lost=True),
    ),
    (
        "lost in the last attempt, and its fetch starts it",
        job(fetch_starts=True, attempt=3),
        LeaseLost(ERROR, started=False),
        Transition(**DEAD, lost=True, reason="all 3 attempts failed"),
    ),
    (
        "lost, at most once, and its fetch starts it",
        job(fetch_starts=True, at_most_once=True),
        LeaseLost(ERROR, started=False),
        Transition(**DEAD, lost=True, reason=MAYBE),
    ),
]


def test_an_error_names_the_worker_that_had_the_job_and_since_when() -> None:
    mine = replace(JOB, worker="w1", fetched_at=NOW - 5)
    assert decide(mine, Raised(ERROR), NOW).error == replace(ERROR, worker="w1", fetched_at=NOW - 5)
    lost = decide(replace(mine, worker="w2", reason=f"{LOST_BY}w1"), LeaseLost(ERROR, True), NOW)
    assert lost.error is not None
    assert lost.error.worker == "w1"


@each("given, outcome, then", [row[1:] for row in TABLE])
def test_follow_up_jobs_are_enqueued(given: Job, outcome: Outcome, then: Transition) -> None:
    assert decide(given, outcome, NOW) == then


@each("given, outcome", [row[1:3] for row in TABLE])
def test_what_follows_is_legal(given: Job, outcome: Outcome) -> None:
    then = decide(given, outcome, NOW)
    removed = then.state in TERMINAL and then.keep == 0
    assert (State.RUNNING, None if removed else then.state) in LEGAL
    assert (then.delay > 0) <= (then.state in (State.SCHEDULED, State.RETRYABLE, State.SUSPENDED))


def test_every_outcome_is_in_the_table() -> None:
    assert {type(row[2]) for row in TABLE} == set(Outcome.__args__)  # type: ignore[attr-defined]


def test_every_step_out_of_running_follows_from_some_outcome() -> None:
    def to(given: Job, outcome: Outcome) -> State | None:
        then = decide(given, outcome, NOW)
        return None if then.state in TERMINAL and not then.keep else then.state

    reached = {to(given, outcome) for _, given, outcome, _ in TABLE}
    others = {State.RUNNING, State.WAITING}  # by other verbs; by its partition, which the store knows of
    assert reached == {after for before, after in LEGAL if before is State.RUNNING} - others


@pytest.mark.parametrize(
    ("given", "on_record"),
    [
        (JOB, False),
        (job(attempt=2), False),
        (job(attempt=3), True),
        (job(attempt=4), True),
        (job(at_most_once=True), True),
        (job(attempt=3, fetch_starts=True), False),
    ],
)
def test_which_starts_must_be_on_record_first(given: Job, on_record: bool) -> None:
    assert starts_on_record(given) is on_record


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (JOB, None),
        (job(deadline=NOW + 1), None),
        (job(deadline=NOW), DeadlinePassed()),
        (replace(JOB, expires_at=NOW + 1), None),
        (replace(JOB, expires_at=NOW), Expired()),
        (replace(job(deadline=NOW), expires_at=NOW), Expired()),
    ],
)
def test_which_jobs_must_not_start_any_more(given: Job, outcome: Outcome | None) -> None:
    assert too_late(given, NOW) == outcome


@pytest.mark.parametrize("seconds", [-0.136, 0.0, 0.004, 1.9])
@pytest.mark.parametrize("timeout", [None, 2_000])
def test_an_attempt_that_its_deadline_has_ended_says_so(timeout: int | None, seconds: float) -> None:
    """Also if it began so late that nothing was left: that is no duration."""
    assert limit_passed(job(timeout=timeout, deadline=NOW), seconds) == "its deadline has passed"


@pytest.mark.parametrize("deadline", [None, NOW])
def test_an_attempt_that_its_timeout_has_ended_says_after_how_long(deadline: int | None) -> None:
    said = limit_passed(job(timeout=2_000, deadline=deadline), 2.0000001)
    assert said == "the attempt timed out after 2 s"


def test_luck_moves_the_wait_of_a_policy_with_jitter() -> None:
    given = job(retry=Exponential(base=1_000, jitter=0.5))
    delays = [decide(given, Raised(ERROR), NOW, luck).delay for luck in (0.0, 0.5, 0.999)]
    assert delays == [1_000, 750, 500]


def test_without_a_policy_the_wait_is_exponential() -> None:
    delays = [decide(job(retry=None, attempt=n), Raised(ERROR), NOW, 0.0).delay for n in (1, 2)]
    assert delays == [1_000, 2_000]


def test_a_job_that_always_fails_ends_after_its_attempts() -> None:
    given, starts = job(max_attempts=25, retry=None), 0
    while True:
        starts += 1
        given = replace(given, attempt=starts)
        if decide(given, Raised(ERROR), NOW).state is State.DEAD:
            break
    assert starts == 25


def test_a_job_that_kills_its_workers_ends_after_its_attempts() -> None:
    """Each loss of a started attempt counts (I5)."""
    for attempt in range(1, 4):
        then = decide(job(attempt=attempt, lost=attempt - 1), LeaseLost(ERROR), NOW)
        assert then.charge
        assert (then.state is State.DEAD) == (attempt == 3)


def test_how_long_dead_jobs_stay_may_be_set() -> None:
    last = job(attempt=3)
    for outcome in (Raised(ERROR), TimedOut(ERROR), LeaseLost(ERROR), DecodingFailed(ERROR)):
        assert decide(last, outcome, NOW, keep_dead=DAY).keep == DAY
        assert decide(last, outcome, NOW).keep == DEAD_KEPT
    patient = job(attempt=3, retention=2 * DAY)
    assert decide(patient, Raised(ERROR), NOW, keep_dead=DAY).keep == 2 * DAY
    assert decide(JOB, Raised(ERROR), NOW, keep_dead=DAY).keep == 0
    assert decide(JOB, Cancelled(), NOW, keep_dead=DAY).keep == FINISHED_KEPT


def test_a_long_reason_is_cut() -> None:
    error = AttemptError(1, NOW, "E", "x" * 2_000)
    assert len(decide(JOB, DecodingFailed(error), NOW).reason or "") == 300
    assert len(decide(JOB, Cancelled("y" * 2_000), NOW).reason or "") == 300


def test_released_is_what_follows_from_released() -> None:
    for place in QueuePosition:
        assert released(place) == decide(JOB, Released(place), NOW)


# ── kept and first_state ──


@pytest.mark.parametrize(
    ("retention", "state", "keep"),
    [
        (0, State.COMPLETED, 0),
        (5, State.COMPLETED, 5),
        (0, State.CANCELLED, FINISHED_KEPT),
        (DAY, State.CANCELLED, DAY),
        (0, State.DEAD, DEAD_KEPT),
        (100 * DAY, State.DEAD, 100 * DAY),
    ],
)
def test_kept(retention: int, state: State, keep: int) -> None:
    assert kept(NewJob("i", "t", retention=retention), state) == keep


@pytest.mark.parametrize(
    ("spec", "state", "due"),
    [
        ({}, State.AVAILABLE, NOW),
        ({"delay": 1}, State.SCHEDULED, NOW + 1),
        ({"run_at": NOW + 1}, State.SCHEDULED, NOW + 1),
        ({"run_at": NOW}, State.AVAILABLE, NOW),
        ({"run_at": NOW - 5}, State.AVAILABLE, NOW - 5),
        ({"run_at": NOW - 5, "delay": 10}, State.AVAILABLE, NOW - 5),
        ({"run_at": NOW + 5, "delay": 10}, State.SCHEDULED, NOW + 5),
    ],
)
def test_first_state(spec: dict[str, int], state: State, due: int) -> None:
    assert first_state(NewJob("i", "t", **spec), NOW) == (state, due)


# ── the table of legal steps ──


def printed(legal: dict[tuple[State | None, State | None], str]) -> list[str]:
    """The table as the docs must have it."""
    rows = [
        f"| {before.value if before else '(new)'} | {after.value if after else '(gone)'} | {how} |"
        for (before, after), how in legal.items()
    ]
    return ["| from | to | by |", "|---|---|---|", *rows]


def test_the_docs_print_the_table_of_legal_steps() -> None:
    text = DOC.read_text("utf-8")
    section = text.split("## Every legal step\n", 1)[1]
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert table == printed(LEGAL), "put this into docs/lifecycle.md:\n" + "\n".join(printed(LEGAL))


def test_the_docs_name_every_state_and_outcome() -> None:
    text = DOC.read_text("utf-8")
    named = set(re.findall(r"`([A-Za-z]+)`", text))
    assert {state.value for state in State} <= named
    assert {outcome.__name__ for outcome in Outcome.__args__} <= named  # type: ignore[attr-defined]


def test_every_state_can_be_reached_and_left() -> None:
    for state in State:
        assert any(after is state for _, after in LEGAL)
        assert any(before is state and after is not state for before, after in LEGAL)


def test_an_ended_job_leaves_only_by_retry_by_completion_or_for_good() -> None:
    for before, after in LEGAL:
        if before in TERMINAL:
            completed = State.COMPLETED if before is not State.COMPLETED else None
            assert after in (State.AVAILABLE, State.WAITING, State.COLLECTING, completed, None)
