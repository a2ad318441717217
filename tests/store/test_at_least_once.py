"""At least once: every stored job reaches exactly one end, despite lost messages (I1, I4, I5, I7)."""

from __future__ import annotations

import random
from collections import Counter

from penstock.core.clock import ManualClock
from penstock.core.job import TERMINAL, AttemptError, Job, State
from penstock.core.lifecycle import decide
from penstock.core.outcomes import LeaseLost, Outcome, Raised, Released, Returned, Snoozed
from penstock.retry import Fixed
from penstock.stores.contract import EnqueueStatus, HeartbeatRequest, Settled, Settlement, Share, Store
from tests.cases import each
from tests.store.facts import DAY, KEEP, LEASE, SECOND, all_jobs, counts, new

QUEUES = ["a", "b"]
JOBS = 120
WORKERS = 3


class World:
    """A few workers that crash, freeze and lose replies, and a ledger that trusts none of them."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.dice = random.Random(seed)
        self.tokens = 0
        self.held: list[Job] = []  # what live workers believe that they hold
        self.frozen: list[Job] = []  # what frozen ones believe, who may come back at any time
        self.acknowledged: set[str] = set()
        self.starts: Counter[str] = Counter()  # charged starts
        self.ends: Counter[str] = Counter()  # settlements to a terminal state that applied
        self.processed = self.failed = 0

    def token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    async def enqueue(self) -> None:
        jobs = [
            new(
                queue=self.dice.choice(QUEUES),
                delay=self.dice.choice([0, 0, SECOND, 5 * SECOND]),
                max_attempts=self.dice.choice([1, 2, 5]),
                priority=self.dice.choice([-1, 0, 1]),
                retry=Fixed(2 * SECOND),
                retention=KEEP,
            )
            for _ in range(10)
        ]
        answers = await self.store.enqueue(jobs)
        if self.dice.random() < 0.3:  # the reply was lost: the same call again stores nothing twice
            answers = await self.store.enqueue(jobs)
            assert {answer.status for answer in answers} == {EnqueueStatus.EXISTS}
        self.acknowledged.update(answer.id for answer in answers)

    async def fetch(self) -> None:
        shares = [Share(queue, 3, 6) for queue in QUEUES]
        worker, token = f"w{self.dice.randrange(WORKERS)}", self.token()
        for _ in range(2 if self.dice.random() < 0.3 else 1):  # a lost reply: ask again
            fetched = await self.store.fetch(shares, limit=8, lease=LEASE, worker=worker, token=token)
        for job in fetched.jobs:
            assert job.run_at <= fetched.now  # I4
            assert job.attempt <= job.spec.max_attempts  # I5
            self.starts[job.id] += 1
        fate = self.dice.random()
        if fate < 0.15:
            return  # it crashes, and nobody hears of these jobs from it again
        (self.frozen if fate < 0.3 else self.held).extend(fetched.jobs)

    def outcome(self, job: Job) -> Outcome:
        error = AttemptError(job.attempt, self.clock.now(), "ValueError", "no luck")
        dice = self.dice.random()
        if dice < 0.6:
            return Returned()
        if dice < 0.85:
            return Raised(error)
        return Snoozed(SECOND) if dice < 0.93 else Released()

    async def settle(self, jobs: list[Job], outcomes: list[Outcome]) -> None:
        now = self.clock.now()
        made = [
            Settlement(job.lease, decide(job, outcome, now))
            for job, outcome in zip(jobs, outcomes, strict=True)
        ]
        answers = await self.store.settle(made)
        if self.dice.random() < 0.3:  # the reply was lost: what was applied does not apply again
            again = await self.store.settle(made)
            assert Settled.APPLIED not in again
        for one, answer in zip(made, answers, strict=True):
            if answer is not Settled.APPLIED:
                continue
            self.processed += one.transition.charge
            self.failed += one.transition.error is not None
            if not one.transition.charge:
                self.starts[one.lease.id] -= 1
            if one.transition.state in TERMINAL:
                self.ends[one.lease.id] += 1

    async def step(self) -> None:
        self.clock.advance(self.dice.choice([10, 500, 2 * SECOND, LEASE // 2]))
        await self.store.promote(QUEUES, limit=20)
        await self.fetch()
        self.dice.shuffle(self.held)
        n = self.dice.randrange(len(self.held) + 1)
        done, self.held = self.held[:n], self.held[n:]
        await self.settle(done, [self.outcome(job) for job in done])
        await self.store.extend([HeartbeatRequest(job.lease, LEASE, started=True) for job in self.held])
        if self.frozen and self.dice.random() < 0.2:  # they wake and settle, too late or just in time
            late, self.frozen = self.frozen, []
            await self.settle(late, [Returned() for _ in late])
        await self.reclaim()

    async def reclaim(self) -> None:
        lost = await self.store.reclaim(QUEUES, limit=50, lease=LEASE, worker="reclaimer", token=self.token())
        if self.dice.random() < 0.2:
            return  # the reclaimer crashes too
        error = AttemptError(0, self.clock.now(), "LeaseLost", "its worker is gone")
        await self.settle(lost.jobs, [LeaseLost(error, started=job.started) for job in lost.jobs])

    async def finish(self) -> None:
        for _ in range(400):
            self.clock.advance(LEASE)
            await self.step()
            left = [job for job in await all_jobs(self.store) if not job.ended]
            if not left:
                return
        raise AssertionError(f"{len(left)} jobs reach no end: {left[:3]}")


@each("seed", range(6))
async def test_every_job_reaches_exactly_one_end(store: Store, clock: ManualClock, seed: int) -> None:
    world = World(store, clock, seed)
    for _ in range(JOBS // 10):
        await world.enqueue()
        await world.step()
    await world.finish()

    jobs = await all_jobs(store)
    assert {job.id for job in jobs} == world.acknowledged
    assert len(jobs) == JOBS
    assert set(world.ends) == world.acknowledged
    assert set(world.ends.values()) == {1}
    assert {job.state for job in jobs} <= {State.COMPLETED, State.DEAD}
    for job in jobs:
        assert 1 <= job.attempt <= job.spec.max_attempts
        assert world.starts[job.id] == job.attempt
        assert job.state is State.COMPLETED or job.errors

    shown: Counter[State] = Counter()
    for queue in QUEUES:
        shown.update(await counts(store, queue))
    assert shown == Counter(job.state for job in jobs)
    stats = await store.stats()
    assert sum(s.enqueued for s in stats) == JOBS
    assert sum(s.processed for s in stats) == world.processed
    assert sum(s.failed for s in stats) == world.failed

    clock.advance(91 * DAY)
    assert (await store.prune()).finished == JOBS
    assert await all_jobs(store) == []


async def test_a_fetch_whose_reply_was_lost_loses_nothing(store: Store) -> None:
    await store.enqueue([new() for _ in range(5)])
    share = [Share("default", 5, 5)]
    lost = await store.fetch(share, limit=5, lease=LEASE, worker="w1", token="t")
    again = await store.fetch(share, limit=5, lease=LEASE, worker="w1", token="t")
    assert {job.id for job in again.jobs} == {job.id for job in lost.jobs}
    assert [job.attempt for job in again.jobs] == [1] * 5


async def test_a_settle_whose_reply_was_lost_may_be_sent_until_it_is_answered(store: Store) -> None:
    spec, following = new(), new()
    await store.enqueue([spec])
    fetched = await store.fetch([Share("default", 1, 1)], limit=1, lease=LEASE, worker="w1", token="t")
    (job,) = fetched.jobs
    made = Settlement(job.lease, decide(job, Returned(), 0), then=(following,))
    answers = [await store.settle([made]) for _ in range(3)]
    assert answers == [[Settled.APPLIED], [Settled.GONE], [Settled.GONE]]
    assert await counts(store) == {State.AVAILABLE: 1}
    (stats,) = await store.stats()
    assert (stats.enqueued, stats.processed) == (2, 1)
