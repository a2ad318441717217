"""Linearizability: some order of concurrent calls explains all their answers.

Three clients, each in its own thread with its own event loop and store object, execute random verbs on few
jobs; the clock stands still. `histories.py` searches for the order. The seed is printed: it determines the
calls, but not how they overlap.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from penstock.core.clock import ManualClock
from penstock.core.job import Lease, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.outcomes import QueuePosition
from penstock.core.relations import Partition
from penstock.core.unique import QUEUED_PHASE, RUNNING_PHASE, UniqueKey
from penstock.stores.contract import Enqueued, EnqueueStatus, Settled, Settlement, Store
from tests.oracle import OracleStore
from tests.store.conftest import STORES
from tests.store.facts import COMPLETED, HOUR, error, new
from tests.store.histories import Asked, Call, Loan, ask, order_of, shown

CLIENTS = 3
CALLS = 5
HISTORIES = {"memory": 400, "oracle": 400, "redis": 400, "redis-cluster": 200, "sqlite": 600}

IDS = ["a", "b", "c"]
KEY = UniqueKey("u", None, QUEUED_PHASE | RUNNING_PHASE, 0)
PARTITION = Partition("l")
MOVES = [
    COMPLETED,
    Transition(State.COMPLETED),
    Transition(State.DEAD, keep=HOUR, error=error()),
    Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False),
    Transition(State.AVAILABLE, error=error()),
    Transition(State.RETRYABLE, error=error()),
    Transition(State.SCHEDULED, delay=1_000, charge=False),
]
VERBS = ["enqueue"] * 5 + ["fetch"] * 5 + ["settle"] * 5 + ["get"] * 3 + ["reclaim", "extend", "promote"]
VERBS += ["cancel", "retry", "reschedule", "discard", "complete", "delete", "queues"]


# ── playing ──────────────────────────────────────────────────────────────────────────────────────


def drawn(dice: random.Random, queue: str, who: str, token: str, leases: dict[Loan, Lease]) -> Asked:
    """What a client asks next; it may settle what another one has fetched."""
    verb = dice.choice(VERBS)
    loans = sorted(leases)
    if verb in ("settle", "extend") and not loans:
        verb = "fetch"
    ids = tuple(dice.sample(IDS, dice.choice([1, 1, 2])))
    match verb:
        case "enqueue":
            jobs = tuple(
                new(
                    id,
                    queue=queue,
                    priority=dice.choice([0, 0, 1]),
                    delay=dice.choice([0, 0, 0, 1_000]),
                    unique=dice.choice([None, None, KEY]),
                    partition=dice.choice([None, None, PARTITION]),
                )
                for id in ids
            )
            return Asked(verb, queue, who, jobs=jobs)
        case "fetch":
            return Asked(verb, queue, who, token, number=dice.choice([1, 1, 2]))
        case "reclaim":
            return Asked(verb, queue, who, token, ids=(f"{queue}-{dice.randrange(CLIENTS)}",))
        case "settle" | "extend":
            some = dice.sample(loans, min(len(loans), dice.choice([1, 1, 2])))
            return Asked(verb, queue, who, loans=tuple((loan, dice.choice(MOVES)) for loan in some))
        case "promote":
            return Asked(verb, queue, who, number=dice.choice([1, 2]))
        case "queues":
            return Asked(verb, queue, who)
        case _:
            return Asked(verb, queue, who, ids=ids, number=dice.choice([0, 0, 1_000]))


def histories(open_store: Callable[[], Store], seed: str, rounds: int) -> list[list[Call]]:
    """What the clients asked and were answered, round by round; each round has a queue of its own."""
    made: list[list[Call]] = [[] for _ in range(rounds)]
    leases: list[dict[Loan, Lease]] = [{} for _ in range(rounds)]
    together = threading.Barrier(CLIENTS)
    stores = [open_store() for _ in range(CLIENTS)]

    async def play(client: int) -> None:
        store = stores[client]
        await store.get([Ref("nowhere", "nobody")])  # it opens itself
        for n in range(rounds):
            queue = f"{seed}-{n}"
            who, dice = f"{queue}-{client}", random.Random(f"{seed} {n} {client}")
            together.wait(60)
            for step in range(CALLS):
                asked = drawn(dice, queue, who, f"{who}-{step}", dict(leases[n]))
                began = time.perf_counter_ns()
                answer = await ask(store, asked, leases[n])
                made[n].append(Call(asked, answer, began, time.perf_counter_ns()))

    def run(client: int) -> None:
        try:
            asyncio.run(play(client))
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(run, client) for client in range(CLIENTS)]:
            done.result()
    return made


def unexplained(made: Sequence[list[Call]], clock: ManualClock) -> list[Call] | None:
    """The first history that no order explains."""
    return next((calls for calls in made if order_of(calls, clock) is None), None)


def overlaps(calls: Sequence[Call]) -> int:
    """How many pairs of calls were under way at the same time."""
    return sum(
        one.asked.who < other.asked.who and one.began < other.ended and other.began < one.ended
        for one in calls
        for other in calls
    )


@pytest.fixture
def opened(kind: str, home: Path, clock: ManualClock) -> Any:
    """Opens one more store object; all are closed in the end."""
    stores: list[Store] = []

    def open_one() -> Store:
        stores.append(STORES[kind](home, "", clock))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


# ── every store ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_some_order_explains_what_clients_are_answered_at_once(
    kind: str, opened: Callable[[], Store], clock: ManualClock
) -> None:
    fresh = f"{random.SystemRandom().randrange(10**9)}"
    for seed, rounds in (("fixed", HISTORIES[kind] // 2), (fresh, HISTORIES[kind] // 2)):
        print(f"histories of {kind}: seed {seed}")
        made = histories(opened, seed, rounds)
        wrong = unexplained(made, clock)
        assert wrong is None, f"seed {seed}: no order explains\n{shown(wrong)}"
        if kind not in ("memory", "oracle"):  # their verbs take microseconds, and threads take turns
            assert sum(map(overlaps, made)) > rounds, "nothing happened at once: nothing was shown"


# ── the check can fail ───────────────────────────────────────────────────────────────────────────


class Mutant:
    """A store with one verb that is not one step."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class SettlesInTwoSteps(Mutant):
    """It looks at the token first, and changes the job then."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        leases = [cast(Lease, one.lease) for one in settlements]
        jobs = await self._store.get([lease.ref for lease in leases])
        await asyncio.sleep(0.002)
        answers = []
        for one, lease, job in zip(settlements, leases, jobs, strict=True):
            if job is None or job.token != lease.token:
                answers.append(Settled.GONE if job is None else Settled.STALE)
            else:
                answers += await self._store.settle([Settlement(lease.ref, one.transition)])
        return answers


class ReadsInTwoSteps(Mutant):
    """Of two jobs it reads the one and then the other."""

    async def get(self, refs: Sequence[Ref]) -> list[Any]:
        jobs = []
        for ref in refs:
            jobs += await self._store.get([ref])
            await asyncio.sleep(0.002)
        return jobs


class AnswersBeforeItStores(Mutant):
    """It looks what the answer would be, gives it, and stores the jobs afterwards."""

    async def enqueue(self, jobs: Any) -> list[Enqueued]:
        there = await self._store.get([job.ref for job in jobs])
        self.later = asyncio.create_task(self._store_later(jobs))
        return [
            Enqueued(EnqueueStatus.NEW if job is None else EnqueueStatus.EXISTS, spec.id)
            for spec, job in zip(jobs, there, strict=True)
        ]

    async def _store_later(self, jobs: Any) -> None:
        await asyncio.sleep(0.002)
        await self._store.enqueue(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("mutant", [SettlesInTwoSteps, ReadsInTwoSteps, AnswersBeforeItStores])
def test_a_store_with_a_verb_in_two_steps_is_found_out(
    opened: Callable[[], Store], clock: ManualClock, mutant: type[Mutant]
) -> None:
    def open_one() -> Store:
        return cast(Store, mutant(opened()))

    for n in range(50):
        made = histories(open_one, f"mutant-{n}", 10)
        if unexplained(made, clock) is not None:
            return
    pytest.fail(f"500 histories, and {mutant.__name__} was not found out")


def enqueued(began: int, ended: int) -> Call:
    asked = Asked("enqueue", "q", "one", jobs=(new("a", queue="q"),))
    return Call(asked, [Enqueued(EnqueueStatus.NEW, "a")], began, ended)


LOOK = Asked("get", "q", "two", ids=("a",))


def test_a_call_that_overlaps_may_stand_on_either_side(clock: ManualClock) -> None:
    order = order_of([enqueued(1, 4), Call(LOOK, [None], 2, 3)], clock)
    assert order is not None
    assert [one.asked.verb for one in order] == ["get", "enqueue"]


def test_what_has_returned_is_seen_by_who_asks_afterwards(clock: ManualClock) -> None:
    assert order_of([enqueued(1, 2), Call(LOOK, [None], 3, 4)], clock) is None


async def test_a_reclaim_leaves_out_only_what_was_leased_meanwhile(clock: ManualClock) -> None:
    store, leases = OracleStore(clock=clock), cast(dict[Loan, Lease], {})
    ids = ("a", "b")
    both = Asked("enqueue", "q", "one", jobs=tuple(new(id, queue="q") for id in ids))
    played = [Call(both, await ask(store, both, leases), 1, 2)]
    for token, began in (("t1", 3), ("t2", 7)):
        fetch = Asked("fetch", "q", "one", token, number=1)
        played.append(Call(fetch, await ask(store, fetch, leases), began, began + 1))
    reclaim = Asked("reclaim", "q", "two", "t3", ids=("one",))
    whole = await ask(store, reclaim, leases)
    assert [job.id for job in whole.jobs] == ["a", "b"]
    first = replace(whole, jobs=whole.jobs[:1])
    assert order_of([*played, Call(reclaim, whole, 6, 9)], clock)
    assert order_of([*played, Call(reclaim, first, 6, 9)], clock)
    assert order_of([*played, Call(LOOK, await ask(store, LOOK, leases), 10, 11)], clock) is None
    assert order_of([*played, Call(reclaim, first, 9, 10)], clock) is None
    assert order_of([*played, Call(reclaim, replace(whole, jobs=whole.jobs[1:]), 6, 9)], clock) is None


async def test_one_lease_is_not_settled_twice(clock: ManualClock) -> None:
    store, leases = OracleStore(clock=clock), cast(dict[Loan, Lease], {})
    fetch = Asked("fetch", "q", "one", "t", number=1)
    first = enqueued(1, 2)
    await ask(store, first.asked, leases)
    fetched = Call(fetch, await ask(store, fetch, leases), 3, 4)
    settle = Asked("settle", "q", "one", loans=((("t", "a"), COMPLETED),))
    applied, stale = [Settled.APPLIED], [Settled.STALE]
    before = [first, fetched]
    assert order_of([*before, Call(settle, applied, 5, 8), Call(settle, stale, 6, 7)], clock)
    assert order_of([*before, Call(settle, applied, 5, 8), Call(settle, applied, 6, 7)], clock) is None
    # nor is it refused before it has been settled
    assert order_of([*before, Call(settle, stale, 5, 6), Call(settle, applied, 7, 8)], clock) is None
