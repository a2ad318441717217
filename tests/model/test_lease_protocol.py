"""The lease protocol keeps its invariants in every reachable state, and each broken variant is detected.

`protocol.py` is the model, `invariants.py` has the invariants. One job is checked with any number of faults
in any order. With late messages, or with two jobs that share fetches and crashes, the number of faults is
limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core.job import NewJob, State
from penstock.core.lifecycle import LEGAL
from penstock.stores.contract import Settled
from tests.model.checker import Checked, explore
from tests.model.invariants import EACH_STEP, END, legal_steps, promises
from tests.model.protocol import (
    HeldLease,
    Kept,
    LeaseProtocol,
    ModelStore,
    Move,
    Possible,
    Told,
    World,
    put,
)

JOB = NewJob("a", "t", max_attempts=2)
KEPT = NewJob("a", "t", max_attempts=2, retention=1_000)
LATER = NewJob("a", "t", max_attempts=2, delay=1_000, retention=1_000)
ONCE = NewJob("a", "t", max_attempts=2, at_most_once=True)
OTHER = NewJob("b", "t", max_attempts=2)


def check(model: LeaseProtocol, **more: Any) -> Checked[World]:
    return explore(model, always=promises(*model.specs), each_step=EACH_STEP, end=END, **more)


# ── the protocol ─────────────────────────────────────────────────────────────────────────────────

#: What is looked at, and how many states there are at least.
LOOKED_AT: dict[str, tuple[tuple[NewJob, ...], dict[str, Any], int]] = {
    "one job, any number of faults": ((JOB,), {"late": 0}, 50_000),
    "one at-most-once job, any number of faults": ((ONCE,), {"late": 0}, 10_000),
    "one job, late messages, four faults": ((LATER,), {"faults": 4}, 10_000),
    "one at-most-once job, late messages, four faults": ((ONCE,), {"faults": 4}, 10_000),
    "two jobs that share fetches and crashes, two faults": (
        (ONCE, OTHER),
        {"faults": 2, "late": 0, "operators": False},
        50_000,
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LOOKED_AT)
def test_every_promise_holds_in_every_state(name: str) -> None:
    specs, facts, floor = LOOKED_AT[name]
    found = check(LeaseProtocol(*specs, **facts))
    print(f"{name}: {found}")
    assert found.wrong is None, str(found.wrong)
    assert found.states >= floor
    assert found.ends


#: Legal steps that are not of leases: partitions and batches, and what keys, prune, expiry and operators do.
NOT_PLAYED = {
    *(step for step in LEGAL if {State.WAITING, State.COLLECTING, State.SUSPENDED} & set(step)),
    (None, State.CANCELLED),
    (State.PARKED, State.SCHEDULED),
    *((state, State.DEAD) for state in (State.SCHEDULED, State.AVAILABLE, State.RETRYABLE, State.PARKED)),
    *((state, State.COMPLETED) for state in State if state is not State.RUNNING),
}


def test_the_model_takes_every_legal_step() -> None:
    seen: set[Any] = set()
    for spec in (JOB, LATER):
        seen |= check(LeaseProtocol(spec, processes=1, late=0), note=legal_steps).seen
    assert seen == set(LEGAL) - NOT_PLAYED


# ── broken ones ──────────────────────────────────────────────────────────────────────────────────


class SettlesWithoutAToken(ModelStore):
    def settle(self, job: Kept, token: int, move: Move) -> tuple[Kept, Settled]:
        return super().settle(job, job.token, move) if job.token else super().settle(job, token, move)


class ReclaimKeepsTheToken(ModelStore):
    def reclaim(self, job: Kept, process: int, token: int) -> Kept:
        return super().reclaim(job, process, job.token)


class ReclaimsBeforeTheLeaseHasRunOut(ModelStore):
    def may_reclaim(self, job: Kept) -> bool:
        return job.state is State.RUNNING


class ReclaimForgetsWhatWasLostBefore(ModelStore):
    def may_reclaim(self, job: Kept) -> bool:
        return super().may_reclaim(job) and not job.lost


class PromotesBeforeItsTime(ModelStore):
    def promote(self, job: Kept) -> Kept | None:
        return super().promote(job._replace(due=True)) and job._replace(state=State.AVAILABLE)


class FetchesWhatIsNotAvailable(ModelStore):
    def may_fetch(self, job: Kept) -> bool:
        return super().may_fetch(job) or (job.state is State.RETRYABLE and job.due)


class KeepsTheTokenOfWhatHasEnded(ModelStore):
    def settle(self, job: Kept, token: int, move: Move) -> tuple[Kept, Settled]:
        after, answer = super().settle(job, token, move)
        return after._replace(token=job.token) if after.state is State.COMPLETED else after, answer


class SettleLosesWhatGoesBack(ModelStore):
    def settle(self, job: Kept, token: int, move: Move) -> tuple[Kept, Settled]:
        after, answer = super().settle(job, token, move)
        return after._replace(state=None) if after.state is State.RETRYABLE else after, answer


class AcknowledgesBeforeItIsStored(LeaseProtocol):
    def produce(self, world: World, j: int) -> Iterator[Possible]:
        for one in super().produce(world, j):
            yield one._replace(after=one.after._replace(told=put(one.after.told, j, Told.STORED)))


class RepeatsWhatIsNotRemembered(LeaseProtocol):
    def repeats(self) -> bool:
        return True


class ChargesNoCrash(LeaseProtocol):
    def judged(self, job: Kept, j: int, *, begun: bool) -> Move:
        return super().judged(job, j, begun=begun)._replace(state=State.AVAILABLE, charge=False)


class GivesEveryCrashAnotherAttempt(LeaseProtocol):
    def judged(self, job: Kept, j: int, *, begun: bool) -> Move:
        return super().judged(job, j, begun=begun)._replace(state=State.AVAILABLE, later=False)


class JudgesEachAlike(LeaseProtocol):
    """Whether it may start once only, or again."""

    def judged(self, job: Kept, j: int, *, begun: bool) -> Move:
        return LeaseProtocol(OTHER).judged(job, 0, begun=begun)


class StartsBeforeItIsOnRecord(LeaseProtocol):
    def starts_on_record(self, j: int, hold: HeldLease) -> bool:
        return False


class BelievesTheTableOfADeadJudge(LeaseProtocol):
    """A worker dies that had taken back the job of another: its own table knows nothing of that attempt."""

    def table_says(self, job: Kept, entry: HeldLease | None) -> bool:
        return job.started if entry is None else entry.began


#: The variant, the promise that it breaks, and how the last of so many steps begins.
BROKEN: list[tuple[LeaseProtocol, str, int, str]] = [
    (
        AcknowledgesBeforeItIsStored(JOB),
        "i1_what_was_acknowledged_is_there_or_has_ended",
        1,
        "the producer enqueues job a: the request is lost",
    ),
    (
        LeaseProtocol(JOB, store=SettleLosesWhatGoesBack()),
        "i1_what_was_acknowledged_is_there_or_has_ended",
        5,
        "W1 settles job a: retryable",
    ),
    (
        RepeatsWhatIsNotRemembered(JOB, late=0, remembered=False),
        "i1_it_ends_once",
        6,
        "the producer enqueues job a",
    ),
    (
        LeaseProtocol(KEPT, store=KeepsTheTokenOfWhatHasEnded()),
        "i1_it_ends_once",
        6,
        "W1 settles job a: completed",
    ),
    (
        LeaseProtocol(JOB, processes=1, late=0, store=ReclaimForgetsWhatWasLostBefore()),
        "i1_an_end_can_be_reached_from_everywhere",
        8,
        "",
    ),
    (
        LeaseProtocol(JOB, store=SettlesWithoutAToken()),
        "i3_only_who_holds_a_running_job_changes_it",
        6,
        "W1 settles job a",
    ),
    (
        LeaseProtocol(JOB, store=ReclaimsBeforeTheLeaseHasRunOut()),
        "i3_only_who_holds_a_running_job_changes_it",
        3,
        "W1 reclaims job a",
    ),
    (
        LeaseProtocol(JOB, store=ReclaimKeepsTheToken()),
        "i3_one_process_at_a_time_holds_the_lease",
        4,
        "W2 reclaims job a",
    ),
    (
        LeaseProtocol(LATER, store=PromotesBeforeItsTime()),
        "i4_nothing_is_handed_out_before_its_time",
        2,
        "somebody promotes job a",
    ),
    (
        ChargesNoCrash(JOB),
        "i5_what_has_begun_is_charged",
        6,
        "W1 starts job a",
    ),
    (
        BelievesTheTableOfADeadJudge(JOB, late=0, faults=3),
        "i5_what_has_begun_is_charged",
        8,
        "W1 settles job a: available, uncharged",
    ),
    (
        GivesEveryCrashAnotherAttempt(JOB, late=0, faults=3),
        "i5_never_more_attempts_than_allowed",
        11,
        "W",
    ),
    (
        JudgesEachAlike(ONCE, late=0, faults=3),
        "at_most_once_never_starts_twice",
        10,
        "W",
    ),
    (
        StartsBeforeItIsOnRecord(ONCE),
        "i5_what_has_begun_is_charged",
        6,
        "W1 starts job a",
    ),
    (
        LeaseProtocol(JOB, store=FetchesWhatIsNotAvailable()),
        "every_step_is_legal",
        7,
        "W1 fetches job a",
    ),
]


@pytest.mark.parametrize(
    ("model", "promise", "steps", "last"),
    BROKEN,
    ids=[type(m if type(m) is not LeaseProtocol else m.store).__name__ for m, *_ in BROKEN],
)
def test_a_broken_variant_is_caught(model: LeaseProtocol, promise: str, steps: int, last: str) -> None:
    wrong = check(model).wrong
    assert wrong is not None
    assert wrong.broken == promise, str(wrong)
    assert len(wrong.steps) <= steps, str(wrong)
    assert wrong.steps[-1].startswith(last), str(wrong)


def test_every_promise_is_broken_by_some_variant() -> None:
    asked = {*promises(JOB), *EACH_STEP, END[0]}
    assert {promise for _, promise, *_ in BROKEN} == asked
