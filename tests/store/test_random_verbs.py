"""Random verbs: whatever is played, in whatever order, each store answers and holds what `memory` does.

Hypothesis plays all verbs, with stale and made-up tokens, repeated calls, unknown names and a clock that
runs, is set and reboots. After every step the whole content is compared, the counts are checked against
the jobs, and every step that a job took must be in `lifecycle.LEGAL`. Generations and cursors are each
store's own and are compared by the order that they make.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from penstock.clock import ManualClock
from penstock.errors import PenstockError
from penstock.job import QUEUED, TERMINAL, Job, Lease, NewJob, Progress, Ref, State
from penstock.lifecycle import LEGAL, Place, Transition
from penstock.store import Beat, Fetched, Page, Settlement, Share, Store, WorkerInfo
from penstock.stores.memory import MemoryStore
from penstock.unique import UniqueKey
from tests.store.conftest import STORES
from tests.store.facts import DAY, HOUR, MINUTE, error

RUNS, STEPS = 200, 50
# of memory, which would be compared with itself, only what must be true of every store is checked
RUNS_OF_MEMORY = 60

Step = tuple[State | None, State | None]

# ── what is played with: few of everything, so that things meet ──

QUEUES = ["q1", "q2"]
IDS = ["a", "b", "c", "d", "e"]
TASKS = ["t1", "t2"]
WORKERS = ["w1", "w2"]
TOKENS = ["k1", "k2", "k3", "k4", "k5", "k6"]

a_queue = st.sampled_from([*QUEUES, *QUEUES, "nowhere"])
some_queues = st.lists(a_queue, max_size=3, unique=True)
a_ref = st.builds(Ref, st.sampled_from(QUEUES), st.sampled_from(IDS))
some_refs = st.lists(st.one_of(a_ref, a_ref, a_ref, st.just(Ref("nowhere", "a"))), max_size=4)
a_worker = st.sampled_from(WORKERS)
a_token = st.sampled_from(TOKENS)
a_time = st.sampled_from([0, 0, 1, 10, 1_000, MINUTE])
a_key = st.builds(UniqueKey, st.sampled_from(["u1", "u2"]), st.sampled_from([None, None, 0, 10, 1_000]))
an_instant = st.sampled_from([-1_000, -1, 0, 1, 10, 1_000])  # from now

new_jobs = st.fixed_dictionaries(
    {
        "id": st.sampled_from(IDS),
        "queue": st.sampled_from(QUEUES),
        "task": st.sampled_from(TASKS),
        "payload": st.sampled_from([b"{}", b"\x00\xff", b"x" * 3_000]),
        "priority": st.sampled_from([0, 0, 0, -1, 1]),
        "delay": a_time,
        "retention": st.sampled_from([0, 1_000]),
    },
    optional={
        "run_at": an_instant,
        "expires_in": st.sampled_from([1, 1_000, MINUTE]),
        "expires_at": an_instant,
        "unique": a_key,
        "headers": st.just({"k": "v"}),
    },
)

transitions = st.one_of(
    st.builds(
        Transition,
        state=st.sampled_from(sorted(TERMINAL)),
        keep=st.sampled_from([0, 1, 1_000, HOUR]),
        charge=st.booleans(),
        lost=st.booleans(),
        error=st.sampled_from([None, error()]),
        reason=st.sampled_from([None, "because"]),
    ),
    st.builds(
        Transition,
        state=st.sampled_from(sorted(QUEUED)),
        delay=a_time,
        place=st.sampled_from(list(Place)),
        charge=st.booleans(),
        lost=st.booleans(),
        error=st.sampled_from([None, error()]),
        reason=st.sampled_from([None, "because"]),
    ),
)

#: Which lease is shown: one of those ever given, and whether something about it is made up.
leases = st.tuples(
    st.integers(0, 11), st.sampled_from(["", "", "", "", "", "token", "generation", "ref", "id"])
)
settlings = st.fixed_dictionaries(
    {"lease": leases, "transition": transitions, "result": st.sampled_from([None, b"1"])},
    optional={"then": st.lists(new_jobs, min_size=1, max_size=2)},
)
beats = st.fixed_dictionaries(
    {"lease": leases, "by": st.sampled_from([0, 10, 15_000]), "started": st.booleans()},
    optional={"progress": st.just(Progress(1, 2, "n")), "checkpoint": st.just(b"c")},
)
shares = st.lists(
    st.builds(Share, a_queue, st.integers(0, 3), st.integers(0, 4)),
    min_size=1,
    max_size=3,
    unique_by=lambda share: share.queue,
)


def bare(value: Any) -> Any:
    """An answer without what is each store's own: the numbers of generations and cursors."""
    if isinstance(value, Job):
        return replace(value, generation=0)
    if isinstance(value, Fetched):
        return replace(value, jobs=bare(value.jobs))
    if isinstance(value, Page):
        return replace(value, jobs=bare(value.jobs), next=value.next is not None)
    if isinstance(value, list):
        return [bare(each) for each in value]
    return value


class Verbs(RuleBasedStateMachine):
    """Two stores, one clock: what is done to one is done to the other."""

    kind: str
    seen: Counter[Step]
    place: Path
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        self.home = self.place / str(self.runs)
        self.home.mkdir()
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.stores: list[Store] = []
        self.open()
        self.leases: list[tuple[Lease, Lease]] = []  # as the one store and as the other gave it
        self.before: dict[int, Job] = {}

    def open(self) -> None:
        for store in self.stores:
            store.close()
        subject = STORES[self.kind](self.home, "", self.clock)
        self.stores = [subject, MemoryStore(f"oracle of {self.home}", clock=self.clock)]

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.runner.close()
        shutil.rmtree(self.home)

    # playing on both

    def run(self, n: int, verb: str, args: Sequence[Any], facts: dict[str, Any]) -> Any:
        try:
            return self.runner.run(getattr(self.stores[n], verb)(*args, **facts))
        except PenstockError as refused:
            return type(refused)

    def both(self, verb: str, *args: Any, any_order: bool = False, **facts: Any) -> list[Any]:
        """Play a verb on both; their answers, which must agree."""
        return self.each(verb, [args, args], any_order=any_order, **facts)

    def each(
        self, verb: str, args: Sequence[Sequence[Any]], any_order: bool = False, **facts: Any
    ) -> list[Any]:
        answers = [self.run(n, verb, args[n], facts) for n in (0, 1)]
        if any_order:
            for answer in answers:
                answer.jobs.sort(key=lambda job: (job.queue, job.id))
        assert bare(answers[0]) == bare(answers[1]), verb
        return answers

    def held(self, token: str) -> bool:
        return any(job.token == token for job in self.before.values())

    def remember(self, answers: list[Fetched]) -> None:
        pairs = zip(answers[0].jobs, answers[1].jobs, strict=True)
        self.leases = ([(a.lease, b.lease) for a, b in pairs] + self.leases)[:12]

    def lease(self, pick: tuple[int, str]) -> list[Lease | Ref]:
        """One of the leases ever given, or something like it, for each of the stores."""
        n, change = pick
        if not self.leases:
            return [Lease("q1", "a", "k1", 1)] * 2
        both = self.leases[n % len(self.leases)]
        changes: dict[str, Callable[[Lease], Lease | Ref]] = {
            "": lambda lease: lease,
            "token": lambda lease: replace(lease, token=lease.token + "x"),
            "generation": lambda lease: replace(lease, generation=lease.generation + 1_000),
            "id": lambda lease: replace(lease, id=IDS[n % len(IDS)]),
            "ref": lambda lease: lease.ref,
        }
        return [changes[change](lease) for lease in both]

    def new(self, facts: dict[str, Any]) -> NewJob:
        now = self.clock.now()
        at = {name: now + facts[name] for name in ("run_at", "expires_at") if name in facts}
        return NewJob(**{**facts, **at})

    # producing

    @rule(jobs=st.lists(new_jobs, max_size=4))
    def enqueue(self, jobs: list[dict[str, Any]]) -> None:
        self.both("enqueue", [self.new(facts) for facts in jobs])

    @rule(jobs=st.lists(new_jobs, min_size=2, max_size=6))
    def enqueue_more(self, jobs: list[dict[str, Any]]) -> None:
        self.both("enqueue", [self.new(facts) for facts in jobs])

    @rule(refs=some_refs)
    def cancel(self, refs: list[Ref]) -> None:
        self.both("cancel", refs)

    @rule(refs=some_refs, reason=st.sampled_from(["", "because – ½"]))
    def cancel_with_a_reason(self, refs: list[Ref], reason: str) -> None:
        self.both("cancel", refs, reason=reason)

    @rule(refs=some_refs)
    def look(self, refs: list[Ref]) -> None:
        self.both("get", refs)
        self.both("ended", refs, timeout=0)
        for ref in refs:
            self.both("find", ref.id)

    # consuming

    @rule(
        queues=shares,
        limit=st.integers(0, 5),
        lease=st.sampled_from([0, 10, 15_000]),
        worker=a_worker,
        token=a_token,
        charge=st.sampled_from([True, True, True, False]),
    )
    def fetch(self, queues: list[Share], token: str, **facts: Any) -> None:
        self.remember(self.both("fetch", queues, token=token, any_order=self.held(token), **facts))

    @rule(worker=a_worker, token=a_token)
    def fetch_all(self, worker: str, token: str) -> None:
        every = [Share(queue, 3, 10) for queue in QUEUES]
        facts = {"limit": 10, "lease": 1_000, "worker": worker, "token": token}
        self.remember(self.both("fetch", every, any_order=self.held(token), **facts))

    @rule(settlings=st.lists(settlings, max_size=4))
    def settle(self, settlings: list[dict[str, Any]]) -> None:
        each: list[list[Settlement]] = [[], []]
        for facts in settlings:
            then = tuple(self.new(job) for job in facts.get("then", ()))
            for n, lease in enumerate(self.lease(facts["lease"])):
                each[n].append(Settlement(lease, facts["transition"], facts["result"], then))
        self.each("settle", [[made] for made in each])

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 9), transition=transitions, result=st.sampled_from([None, b"1"]))
    def settle_one_that_runs(self, pick: int, transition: Transition, result: bytes | None) -> None:
        held = {(job.queue, job.id, job.token) for job in self.running()}
        pairs = [pair for pair in self.leases if (pair[1].queue, pair[1].id, pair[1].token) in held]
        if pairs:
            pair = pairs[pick % len(pairs)]
            self.each("settle", [[[Settlement(lease, transition, result)]] for lease in pair])

    @rule(beats=st.lists(beats, max_size=3))
    def extend(self, beats: list[dict[str, Any]]) -> None:
        each: list[list[Beat]] = [[], []]
        for facts in beats:
            for n, lease in enumerate(self.lease(facts["lease"])):
                if isinstance(lease, Ref):
                    lease = Lease(lease.queue, lease.id, "", 0)
                each[n].append(Beat(**{**facts, "lease": lease}))
        self.each("extend", [[made] for made in each])

    @rule(queues=some_queues, limit=st.integers(0, 4))
    def promote(self, queues: list[str], limit: int) -> None:
        self.both("promote", queues, limit=limit)

    @rule()
    def promote_all(self) -> None:
        self.both("promote", QUEUES, limit=100)

    @rule(
        queues=some_queues,
        limit=st.integers(0, 4),
        lease=st.sampled_from([0, 10, 15_000]),
        worker=a_worker,
        token=a_token,
        of=st.one_of(st.none(), st.none(), st.lists(a_worker, max_size=2, unique=True)),
    )
    def reclaim(self, queues: list[str], token: str, **facts: Any) -> None:
        self.remember(self.both("reclaim", queues, token=token, any_order=self.held(token), **facts))

    @rule(queues=some_queues, timeout=st.sampled_from([0, 0, 1_001, DAY]))
    def wait(self, queues: list[str], timeout: int) -> None:
        # only the memory of the clock stands still: who would really sleep does not
        end = self.clock.now() + timeout
        due = [
            job
            for job in self.before.values()
            if job.queue in queues and job.state in (State.SCHEDULED, State.RETRYABLE) and job.run_at < end
        ]
        self.both("wait", queues, timeout=timeout if due else 0)

    # operating

    @rule(refs=some_refs)
    def retry(self, refs: list[Ref]) -> None:
        self.both("retry", refs)

    @rule(refs=some_refs, delay=a_time)
    def reschedule(self, refs: list[Ref], delay: int) -> None:
        self.both("reschedule", refs, delay=delay)

    @rule(refs=some_refs, at=an_instant)
    def reschedule_at(self, refs: list[Ref], at: int) -> None:
        self.both("reschedule", refs, run_at=self.clock.now() + at)

    @rule(refs=some_refs)
    def delete(self, refs: list[Ref]) -> None:
        self.both("delete", refs)

    @rule(
        queue=a_queue,
        states=st.lists(st.sampled_from(list(State)), max_size=3, unique=True),
        limit=st.integers(0, 2),
    )
    def purge(self, queue: str, states: list[State], limit: int) -> None:
        self.both("purge", queue, states, limit=limit)

    @rule(queue=a_queue)
    def drop(self, queue: str) -> None:
        self.both("drop", queue)

    @rule(limit=st.integers(0, 3), newest=st.integers(0, 2), dead=st.integers(0, 2))
    def prune_to_few(self, limit: int, newest: int, dead: int) -> None:
        self.both("prune", limit=limit, keep_finished=newest, keep_dead=dead)

    @rule()
    def prune(self) -> None:
        self.both("prune")

    @rule(
        queue=st.sampled_from(QUEUES),
        paused=st.sampled_from([None, True, False, False]),
        closed=st.sampled_from([None, True, False, False]),
    )
    def settings(self, queue: str, paused: bool | None, closed: bool | None) -> None:
        self.both("settings", queue, paused=paused, closed=closed)

    @rule(id=a_worker, tasks=st.lists(st.sampled_from(TASKS), max_size=2, unique=True))
    def announce(self, id: str, tasks: list[str]) -> None:
        self.both("announce", WorkerInfo(id, "host", 1, self.clock.now(), ("q1",), tuple(tasks), 4))

    @rule(id=a_worker)
    def retire(self, id: str) -> None:
        self.both("retire", id)

    @rule(
        queue=st.sampled_from([None, *QUEUES]),
        state=st.sampled_from([None, None, *State]),
        task=st.sampled_from([None, *TASKS]),
        worker=st.sampled_from([None, None, *WORKERS]),
        limit=st.integers(1, 3),
    )
    def page_through(self, **facts: Any) -> None:
        pages = self.both("list_jobs", **facts)
        while pages[0].next is not None:
            afters = [page.next for page in pages]
            pages = [self.run(n, "list_jobs", (), {**facts, "after": afters[n]}) for n in (0, 1)]
            assert bare(pages[0]) == bare(pages[1])

    # time

    @rule(ms=st.sampled_from([1, 10, 1_000, 1_000, MINUTE, MINUTE + 1, HOUR, DAY]))
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(by=st.sampled_from([-HOUR, -10, HOUR, 91 * DAY]))
    def set_the_wall_clock(self, by: int) -> None:
        self.clock.set_wall(self.clock.now() + by)

    @rule(restart=st.booleans())
    def reboot(self, restart: bool) -> None:
        self.clock.reboot(f"boot-{self.clock.boot_id()}" if restart else self.clock.boot_id())
        self.open()

    # what must be true after every step

    def running(self) -> list[Job]:
        return [job for job in self.before.values() if job.state is State.RUNNING]

    @invariant()
    def both_hold_the_same(self) -> None:
        pages = self.both("list_jobs", limit=1_000)
        queues = self.both("queues")[0]
        self.both("stats", days=90)
        self.both("workers")
        jobs = {job.generation: job for job in pages[0].jobs}
        assert list(jobs) == sorted(jobs, reverse=True)
        self.counts_are_true(list(jobs.values()), {queue.name: queue.counts for queue in queues})
        self.steps_are_legal(jobs)
        self.before = jobs

    @staticmethod
    def counts_are_true(jobs: list[Job], shown: dict[str, dict[State, int]]) -> None:
        true: dict[str, Counter[State]] = {}
        for job in jobs:
            true.setdefault(job.queue, Counter())[job.state] += 1
        assert {queue: counts for queue, counts in shown.items() if counts} == true

    def steps_are_legal(self, now: dict[int, Job]) -> None:
        for generation in self.before.keys() | now.keys():
            before, after = self.before.get(generation), now.get(generation)
            if before == after:
                continue
            step = before and before.state, after and after.state
            if before and after and step[0] is step[1]:
                assert step[0] not in TERMINAL, "an ended job has changed"
                moved = before.token != after.token or before.run_at != after.run_at
                if not moved:
                    continue  # a beat, a request to stop
            assert step in LEGAL, step
            self.seen[step] += 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_verbs_do_what_memory_does_and_every_legal_step_occurs(kind: str) -> None:
    if kind != "memory":
        STORES[kind](Path(tempfile.mkdtemp()), "", ManualClock()).close()  # skips where it is missing
    shared = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="penstock-random-", dir=shared if shared.is_dir() else None))
    seen: Counter[Step] = Counter()
    machine = type("Verbs", (Verbs,), {"kind": kind, "seen": seen, "place": place, "runs": 0})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=RUNS_OF_MEMORY if kind == "memory" else RUNS,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert set(seen) == set(LEGAL), f"these did not occur: {set(LEGAL) - set(seen)}"
