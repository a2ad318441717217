"""Random verbs: every store gives the same answers and has the same content as the oracle.

Hypothesis executes all verbs, with stale and invented tokens, repeated calls, unknown names, and a clock that
runs, is set, and reboots. After every step the whole content is compared, the counts are checked against the
jobs, and every transition must be in `lifecycle.LEGAL`. Generations and cursors differ between stores; only
their order is compared.

Every run plays the same games, and a failure is reported as it was found. `FUZZ=10 pytest
tests/store/test_random_verbs.py` plays ten times as many, at random, and shortens what it finds.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from penstock.core.changes import moved_spec, phase, until
from penstock.core.clock import ManualClock
from penstock.core.job import QUEUED, TERMINAL, Job, Lease, NewJob, Progress, Ref, State
from penstock.core.lifecycle import LEGAL, Transition
from penstock.core.limits import LimitChange, OnFull, Rate
from penstock.core.outcomes import QueuePosition
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.unique import FINISHED_PHASE, UniqueKey
from penstock.stores.contract import (
    AnyAct,
    BatchInfo,
    EnqueueStatus,
    Fetched,
    HeartbeatRequest,
    JobCompletion,
    JobDiscard,
    JobEdit,
    JobMove,
    JobReschedule,
    JobRetry,
    PartitionInfo,
    QueueInfo,
    SearchPage,
    Settlement,
    Share,
    Store,
    WorkerInfo,
)
from tests.fuzz import FACTOR
from tests.oracle import OracleStore
from tests.store.conftest import STORES
from tests.store.facts import DAY, HOUR, MINUTE, error

STEPS = 50
#: The oracle against itself shows only what must be true of every store. Where each step is a question to a
#: server, fewer runs see all that is legal. A file has the verbs of the store in memory, and takes longer.
RUNS = {"memory": 60, "oracle": 1, "sqlite": 20, "redis": 30, "redis-cluster": 20}

#: By how much (ms) the clock is set back at most. On Redis the order over several queues is that of the
#: clock where it was set back by more than 5 s (docs/concepts/order.md), and memory's is another then.
FURTHEST_BACK = {"redis": 4_000, "redis-cluster": 4_000}

Step = tuple[State | None, State | None]

# ── what is played with: few of everything, so that things meet ──

QUEUES = ["q1", "q2"]
IDS = ["a", "b", "c", "d", "e", "f", "g"]
TASKS = ["t1", "t2"]
WORKERS = ["w1", "w2"]
TOKENS = ["k1", "k2", "k3", "k4", "k5", "k6"]


def rarely(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """None, most of the time."""
    return st.sampled_from([False] * 7 + [True]).flatmap(lambda some: strategy if some else st.none())


a_queue = st.sampled_from([*QUEUES, *QUEUES, "nowhere"])
some_queues = st.lists(a_queue, max_size=3, unique=True)
#: Which jobs: those that are there, by their place in the list, and now and then one that is not.
some_expiry = st.sampled_from([UNSET, UNSET, None, 1, 1_000])
some_refs = st.lists(st.sampled_from([*range(14), -1]), min_size=1, max_size=5)
a_worker = st.sampled_from(WORKERS)
a_token = st.sampled_from(TOKENS)
a_time = st.sampled_from([0, 0, 0, 0, 1, 10, 1_000, MINUTE])
KEYS = ["u1", "u2"]
a_key = st.builds(
    UniqueKey,
    st.sampled_from(KEYS),
    st.sampled_from([None, None, 0, 10, 1_000]),
    st.sampled_from([3, 3, 3, 1, 1, 7, 7, 2, 4, 5, 6]),
    st.sampled_from([0, 0, 1, 2, 3]),
)
a_batch = st.builds(
    BatchTerms,
    st.sampled_from(["", "g"]),
    st.sampled_from([1, 2, 2, 3]),
    st.sampled_from([None, 10, 1_000, MINUTE]),
    st.sampled_from([None, None, 1, 10]),
)
an_instant = st.sampled_from([-1_000, -1, 0, 1, 10, 1_000])  # from now

#: What keeps jobs out, or back; a limit that is there may also go. Holds are 100 ms at least.
a_limit = st.builds(
    LimitChange,
    max_size=st.sampled_from([UNSET, None, 1, 4]),
    on_full=st.sampled_from([UNSET, OnFull.REJECT, OnFull.WAIT]),
    max_running=st.sampled_from([UNSET, None, 1, 2]),
    rate=st.sampled_from([UNSET, None, Rate(1, 10), Rate(3, 100, 2), Rate(1, 60_000)]),
    keep_finished=st.sampled_from([UNSET, None, 1]),
    keep_dead=st.sampled_from([UNSET, None, 0, 1]),
    keep_finished_for=st.sampled_from([UNSET, None, 10]),
    keep_dead_for=st.sampled_from([UNSET, None, 1_000]),
    throttle=st.sampled_from([UNSET, UNSET, None, 100]),
)
NO_LIMIT = LimitChange(max_size=None, max_running=None, rate=None, throttle=None)

#: Keys with room for one or two at once, kept in order, or with a rate; and the same key with other terms.
a_partition = st.builds(
    Partition,
    st.sampled_from(["l1", "l2"]),
    most=st.sampled_from([1, 1, 2]),
    ordered=st.booleans(),
    rate=st.sampled_from([None, None, None, Rate(1, 1_000), Rate(3, 1_000, 2)]),
)
a_tenant = st.builds(Tenant, st.sampled_from(["x", "y", "z"]), st.sampled_from([1, 1, 2, 7]))

new_jobs = st.fixed_dictionaries(
    {
        "id": st.sampled_from(IDS),
        "queue": st.sampled_from(QUEUES),
        "task": st.sampled_from(TASKS),
        "payload": st.sampled_from([b"{}", b"\x00\xff", b"x" * 3_000]),
        "priority": st.sampled_from([0, 0, 0, -1, 1]),
        "delay": a_time,
        "run_at": rarely(an_instant),
        "expires_in": rarely(st.sampled_from([1, 1_000, MINUTE])),
        "expires_at": rarely(an_instant),
        "unique": st.one_of(st.none(), st.none(), st.none(), a_key),
        "batch_terms": st.sampled_from([False, False, True]).flatmap(
            lambda some: a_batch if some else st.none()
        ),
        "retention": st.sampled_from([0, 1_000]),
        "keep_dead": rarely(st.just(10)),
        "headers": rarely(st.just({"k": "v"})),
        "partition": st.one_of(st.none(), a_partition),
        "tenant": rarely(a_tenant),
    }
)

transitions = st.one_of(
    st.builds(
        Transition,
        state=st.sampled_from(sorted(TERMINAL)),
        keep=st.sampled_from([0, 1_000, HOUR, HOUR]),
        charge=st.booleans(),
        lost=st.booleans(),
        error=st.sampled_from([None, error()]),
        reason=st.sampled_from([None, "because"]),
    ),
    st.builds(
        Transition,
        state=st.sampled_from(sorted(QUEUED - {State.COLLECTING, State.WAITING} | {State.SUSPENDED})),
        delay=a_time,
        throttle=st.sampled_from([0, 0, 0, 0, 0, 10]),
        throttle_partition=st.sampled_from([0, 0, 0, 10]),
        place=st.sampled_from(list(QueuePosition)),
        charge=st.booleans(),
        lost=st.booleans(),
        error=st.sampled_from([None, error()]),
        reason=st.sampled_from([None, "because"]),
    ),
    st.builds(
        Transition,
        state=st.just(State.AVAILABLE),
        place=st.sampled_from(list(QueuePosition)),
        charge=st.just(False),
        throttle_partition=st.sampled_from([1, 10, 15_000]),
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
heartbeats = st.fixed_dictionaries(
    {"lease": leases, "by": st.sampled_from([0, 10, 15_000]), "started": st.booleans()},
    optional={"progress": st.just(Progress(1, 2, "n")), "checkpoint": st.just(b"c")},
)
#: Acts of one request: which act, on which job (few, so that one job has several of them), with what.
acts = st.tuples(
    st.sampled_from(["retry", "reschedule", "discard", "complete", "edit", "move"]),
    st.sampled_from([0, 0, 1, 1, 2, *range(3, 14), -1]),
    st.fixed_dictionaries(
        {
            "delay": a_time,
            "attempts": st.sampled_from([None, None, 1, 2]),
            "expires_in": some_expiry,
            "result": st.sampled_from([None, b"1", b"null"]),
            "to": st.sampled_from([*QUEUES, *QUEUES, "other"]),
            "partition": st.one_of(st.none(), a_partition),
        }
    ),
)
shares = st.lists(
    st.builds(Share, a_queue, st.integers(0, 3), st.integers(0, 4)),
    min_size=1,
    max_size=3,
    unique_by=lambda share: share.queue,
)

#: What one verb may do in two steps: a fetch that starts one of a partition lets in another one with other
#: terms, and takes it.
AT_ONCE = {
    (State.WAITING, State.RUNNING): [
        (State.WAITING, State.AVAILABLE),
        (State.AVAILABLE, State.RUNNING),
    ]
}

WALK_KEY = UniqueKey("walk", None, 3, 3)
#: What takes a job on that has not ended and does not run.
OF_OPEN = ("cancel", "discard", "complete", "delete")
OF_ENDED = ("complete", "delete", "prune")
#: Where a job is led, and which verb takes it on from there: all that is legal after an attempt.
WALKS = [
    *((State.SCHEDULED, then) for then in ("now", "later", *OF_OPEN)),
    *((State.AVAILABLE, then) for then in ("now", "later", *OF_OPEN, "fetch")),
    *((State.RETRYABLE, then) for then in ("now", "later", *OF_OPEN)),
    *((State.WAITING, then) for then in ("now", "later", *OF_OPEN, "its tenant")),
    *(
        (state, "into a partition")
        for state in (State.SCHEDULED, State.RETRYABLE, State.PARKED, State.SUSPENDED, *sorted(TERMINAL))
    ),
    *((State.SUSPENDED, then) for then in ("retry", *OF_OPEN)),
    *((State.PARKED, then) for then in ("retry", *OF_OPEN, "fetch", *["replace"] * 4)),
    *(
        (state, then)
        for state in sorted(TERMINAL)
        for then in (*["retry"] * 4, "complete", "delete", "prune")
    ),
]
WALK: dict[str, st.SearchStrategy[Any]] = {
    "queue": st.sampled_from(QUEUES),
    "way": st.sampled_from(WALKS),
    "lost": st.sampled_from([False, False, True]),
    "keep": st.sampled_from([0, HOUR, HOUR, HOUR]),
    "batch_terms": st.sampled_from([None, BatchTerms("w", 1)]),
}

#: Each play, how often it is drawn among the others, and what it is drawn with. One rule plays them all, for
#: Hypothesis leaves out many of the rules of a machine in each run, and then little happens.
PLAYS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "enqueue": (6, {"jobs": st.lists(new_jobs, min_size=1, max_size=6)}),
    "ask_for_keys": (2, {}),
    "replace_one": (
        3,
        {
            "delay": st.sampled_from([1_000, 0]),
            "replace": st.sampled_from([3, 2, 1]),
            "id": st.sampled_from(IDS),
        },
    ),
    "cancel": (1, {"refs": some_refs}),
    "cancel_with_a_reason": (1, {"refs": some_refs, "reason": st.sampled_from(["", "because – ½"])}),
    "look": (1, {"refs": some_refs}),
    "fetch": (
        2,
        {
            "queues": shares,
            "limit": st.integers(0, 5),
            "lease": st.sampled_from([0, 10, 15_000]),
            "worker": a_worker,
            "token": a_token,
            "charge": st.sampled_from([True, True, True, False]),
        },
    ),
    "fetch_all": (5, {"worker": a_worker, "token": a_token}),
    "settle": (3, {"settlings": st.lists(settlings, max_size=4)}),
    "settle_what_runs": (
        7,
        {
            "transitions": st.lists(transitions, min_size=1, max_size=4),
            "result": st.sampled_from([None, b"1"]),
        },
    ),
    "extend": (2, {"heartbeats": st.lists(heartbeats, max_size=3)}),
    "promote": (2, {"queues": some_queues, "limit": st.integers(0, 4)}),
    "promote_all": (2, {}),
    "reclaim": (
        3,
        {
            "queues": some_queues,
            "limit": st.integers(0, 4),
            "lease": st.sampled_from([0, 10, 15_000]),
            "worker": a_worker,
            "token": a_token,
            "of": st.one_of(st.none(), st.none(), st.lists(a_worker, max_size=2, unique=True)),
        },
    ),
    "wait": (1, {"queues": some_queues, "timeout": st.sampled_from([0, 0, 1_001, DAY])}),
    "retry": (1, {"refs": some_refs, "attempts": rarely(st.integers(1, 3)), "expiry": some_expiry}),
    "reschedule": (1, {"refs": some_refs, "delay": a_time}),
    "reschedule_at": (1, {"refs": some_refs, "at": an_instant}),
    "walk": (7, WALK),
    "discard": (1, {"refs": some_refs}),
    "complete": (2, {"refs": some_refs, "result": st.sampled_from([None, b"1", b"null"])}),
    "change_jobs": (3, {"acts": st.lists(acts, min_size=1, max_size=6)}),
    "delete": (1, {"refs": some_refs, "running": st.booleans()}),
    "purge": (
        1,
        {
            "queue": a_queue,
            "states": st.lists(st.sampled_from(list(State)), max_size=3, unique=True),
            "limit": st.integers(0, 2),
        },
    ),
    "drop": (1, {"queue": a_queue}),
    "join_again": (1, {"queue": st.sampled_from(QUEUES)}),
    "enqueue_a_late_member": (1, {"queue": st.sampled_from(QUEUES)}),
    "flush_batch": (1, {"pick": st.integers(0, 5)}),
    "prune": (1, {}),
    "prune_to_few": (
        1,
        {"limit": st.integers(0, 3), "newest": st.integers(0, 2), "dead": st.integers(0, 2)},
    ),
    "settings": (
        1,
        {
            "queue": st.sampled_from(QUEUES),
            "paused": st.sampled_from([None, True, False, False, False]),
            "closed": st.sampled_from([None, True, False, False, False]),
        },
    ),
    "limit": (1, {"queue": st.sampled_from(QUEUES), "change": a_limit}),
    "announce": (2, {"id": a_worker, "tasks": st.sampled_from([TASKS, TASKS, TASKS[:1], []])}),
    "retire": (1, {"id": a_worker}),
    "page_through": (
        1,
        {
            "queue": st.sampled_from([None, *QUEUES]),
            "state": st.sampled_from([None, None, *State]),
            "task": st.sampled_from([None, *TASKS]),
            "worker": st.sampled_from([None, None, *WORKERS]),
            "limit": st.integers(1, 3),
        },
    ),
    "partition": (1, {"refs": some_refs}),
    "let_time_pass": (
        4,
        {"ms": st.sampled_from([1, 10, 10, 10, 1_000, 1_000, 1_000, MINUTE, MINUTE + 1, HOUR])},
    ),
    "set_the_wall_clock": (1, {"by": st.sampled_from([-HOUR, -HOUR, -10, -10, 10, 10, HOUR, 91 * DAY])}),
    "open_again": (1, {"after_a_reboot": st.booleans()}),
}

plays = st.sampled_from([name for name, (often, _) in PLAYS.items() for _ in range(often)]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(PLAYS[name][1]))
)


def bare(value: Any) -> Any:
    """An answer without what is each store's own: the numbers of generations and cursors."""
    if isinstance(value, Job):
        return replace(value, generation=0)
    if isinstance(value, PartitionInfo):
        return replace(value, admitted=bare(value.admitted))
    if isinstance(value, Fetched):
        return replace(value, jobs=bare(value.jobs))
    if isinstance(value, SearchPage):
        return [*bare(value.jobs), value.next is not None]
    if isinstance(value, list):
        return [bare(each) for each in value]
    return value


class Verbs(RuleBasedStateMachine):
    """Two stores, one clock: what is done to one is done to the other."""

    kind: str
    seen: Counter[Step]
    parent: Path
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        self.home = self.parent / str(self.runs)
        self.home.mkdir()
        self.clock = ManualClock()
        self.latest = 0  # the latest that it was when it was set
        self.runner = asyncio.Runner()
        self.loop = self.runner.get_loop()
        self.stores: list[Store] = []
        self.open()
        self.leases: list[tuple[Lease, Lease]] = []  # as the one store and as the other gave it
        self.before: dict[int, Job] = {}
        self.many_steps = False  # True: the last verb may have led a job through several states
        #: (queue, id, key) of jobs that may have gone while their key was held on.
        self.outlived: set[tuple[str, str, str]] = set()
        self.batches: list[BatchInfo] = []
        self.queues: list[QueueInfo] = []

    def open(self) -> None:
        for store in self.stores:
            store.close()
        subject = STORES[self.kind](self.home, "", self.clock)
        self.stores = [subject, OracleStore(f"oracle of {self.home}", clock=self.clock)]

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.runner.close()
        shutil.rmtree(self.home)

    @rule(step=plays)
    def play(self, step: tuple[str, dict[str, Any]]) -> None:
        name, facts = step
        getattr(self, name)(**facts)

    # playing on both

    async def answer(self, n: int, verb: str, args: Sequence[Any], facts: dict[str, Any]) -> Any:
        if verb == "page":
            return await self.stores[n].list_jobs(after=args[0], **args[1])
        return await getattr(self.stores[n], verb)(*args, **facts)

    def both(self, verb: str, *args: Any, **facts: Any) -> list[Any]:
        """Play a verb on both; their answers, which must agree."""
        return self.each(verb, [args, args], **facts)

    def each(
        self, verb: str, args: Sequence[Sequence[Any]], repeated: bool = False, **facts: Any
    ) -> list[Any]:
        """The same where each store has arguments of its own: leases and cursors."""

        async def ask() -> list[Any]:
            return [await self.answer(n, verb, args[n], facts) for n in (0, 1)]

        answers = self.loop.run_until_complete(ask())
        if verb == "reclaim":  # batches have no order among the queues
            for answer in answers:
                answer.jobs.sort(key=lambda job: job.queue)
        if repeated and answers[0].jobs:  # a repeated token: the same jobs in any order
            for answer in answers:
                answer.jobs.sort(key=lambda job: (job.queue, job.id))
            answers = [replace(answer, opens_at=None, kept=()) for answer in answers]
        assert bare(answers[0]) == bare(answers[1]), f"{verb}: {answers[0]} but the oracle: {answers[1]}"
        return answers

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

    def refs(self, picks: list[int]) -> list[Ref]:
        there = [job.ref for job in self.before.values()]
        return [there[n % len(there)] if there and n >= 0 else Ref("nowhere", "a") for n in picks]

    def new(self, facts: dict[str, Any]) -> NewJob:
        now = self.clock.now()
        at = {name: now + facts[name] for name in ("run_at", "expires_at") if facts.get(name) is not None}
        if facts.get("batch_terms") is not None:  # a batch has members of many keys: such tasks are refused
            facts = {**facts, "partition": None, "tenant": None}
        return NewJob(**{**facts, **at})

    # producing

    def enqueue(self, jobs: list[dict[str, Any]]) -> None:
        self.both("enqueue", [self.new(facts) for facts in jobs])

    def replace_one(self, delay: int, replace: int, id: str) -> None:
        """A job that has a key meets another of the same: a parked one, which is seldom, before others."""
        unique_jobs = [job for job in self.before.values() if job.spec.unique and job.state in QUEUED]
        for job in sorted(unique_jobs, key=lambda job: job.state is not State.PARKED)[:1]:
            assert job.spec.unique is not None
            unique = UniqueKey(job.spec.unique.key, None, 3, replace)
            self.both("enqueue", [NewJob(id, job.task, b"2", job.queue, delay=delay, unique=unique)])

    def ask_for_keys(self) -> None:
        """Who holds which key: asked by trying to take it, which is taken back."""
        probes = [
            NewJob(f"probe-{key}", "t", queue=queue, unique=UniqueKey(key))
            for queue in QUEUES
            for key in KEYS
        ]
        answers = self.both("enqueue", probes)
        self.both_hold_the_same()
        taken = [probe.ref for probe, one in zip(probes, answers[0], strict=True) if one.id == probe.id]
        self.both("delete", taken)
        jobs = {job.ref: job for job in self.before.values()}
        for probe, one in zip(probes, answers[0], strict=True):
            assert probe.unique is not None
            if one.status is EnqueueStatus.DUPLICATE and Ref(probe.queue, one.id) in jobs:
                self.holds_rightly(jobs[Ref(probe.queue, one.id)], probe.unique.key)

    def holds_rightly(self, holder: Job, key: str) -> None:
        """In a phase that its rule names, and before the end of its period; or it is another life of the id,
        whose key is held on to the end of its period."""
        unique = holder.spec.unique
        if unique is None or unique.key != key or not unique.phases & phase(holder.state):
            assert (holder.queue, holder.id, key) in self.outlived, holder
            return
        end = until(unique, holder.enqueued_at)
        known = (holder.queue, holder.id, key) in self.outlived
        assert known or end is None or end > self.clock.now(), holder

    def enqueue_a_late_member(self, queue: str) -> None:
        """It has expired when it would be a batch."""
        self.enqueue(
            [{"id": "late", "queue": queue, "task": "t1", "batch_terms": BatchTerms("l", 1), "expires_at": 0}]
        )

    def join_again(self, queue: str) -> None:
        self.enqueue([{"id": "again", "queue": queue, "task": "t1", "batch_terms": BatchTerms("again", 3)}])
        self.both_hold_the_same()
        self.clock.advance(1)
        self.both("reschedule", [Ref(queue, "again")])

    def cancel(self, refs: list[int]) -> None:
        self.both("cancel", self.refs(refs))

    def cancel_with_a_reason(self, refs: list[int], reason: str) -> None:
        self.both("cancel", self.refs(refs), reason=reason)

    def look(self, refs: list[int]) -> None:
        asked = self.refs(refs)
        self.both("get", asked)
        self.both("wait_for_end", asked, timeout=0)
        for ref in asked:
            self.both("find", ref.id)

    # consuming

    def fetch(self, queues: list[Share], worker: str, token: str, **facts: Any) -> None:
        self.borrow("fetch", queues, worker, token, **facts)

    def fetch_all(self, worker: str, token: str) -> None:
        every = [Share(queue, 3, 10) for queue in QUEUES]
        self.borrow("fetch", every, worker, token, limit=10, lease=1_000)

    def borrow(self, verb: str, queues: list[Any], worker: str, token: str, **facts: Any) -> None:
        token = f"{worker}-{token}"  # a token is one worker's own
        held = any(job.token == token for job in self.before.values())
        answers = self.both(verb, queues, repeated=held, worker=worker, token=token, **facts)
        pairs = zip(answers[0].jobs, answers[1].jobs, strict=True)
        self.leases = ([(a.lease, b.lease) for a, b in pairs] + self.leases)[:12]

    def settle(self, settlings: list[dict[str, Any]]) -> None:
        each: list[list[Settlement]] = [[], []]
        for facts in settlings:
            then = tuple(self.new(job) for job in facts.get("then", ()))
            for n, lease in enumerate(self.lease(facts["lease"])):
                each[n].append(Settlement(lease, facts["transition"], facts["result"], then))
        self.each("settle", [[made] for made in each])

    def settle_what_runs(self, transitions: list[Transition], result: bytes | None) -> None:
        held = {job.ref: job.token for job in self.before.values() if job.state is State.RUNNING}
        pairs = [pair for pair in self.leases if held.get(pair[0].ref) == pair[0].token]
        made = list(zip(pairs, transitions, strict=False))
        self.each("settle", [[[Settlement(pair[n], to, result) for pair, to in made]] for n in (0, 1)])

    def extend(self, heartbeats: list[dict[str, Any]]) -> None:
        each: list[list[HeartbeatRequest]] = [[], []]
        for facts in heartbeats:
            for n, lease in enumerate(self.lease(facts["lease"])):
                if isinstance(lease, Ref):
                    lease = Lease(lease.queue, lease.id, "", 0)
                each[n].append(HeartbeatRequest(**{**facts, "lease": lease}))
        self.each("extend", [[made] for made in each])

    def promote(self, queues: list[str], limit: int) -> None:
        self.both("promote", queues, limit=limit)

    def promote_all(self) -> None:
        self.both("promote", QUEUES, limit=100)

    def reclaim(self, queues: list[str], worker: str, token: str, limit: int, **facts: Any) -> None:
        if any(job.members for job in self.before.values()):
            limit = max(limit, 100)  # which batch is the first among several queues is not said
        self.borrow("reclaim", queues, worker, token, limit=limit, **facts)

    def wait(self, queues: list[str], timeout: int) -> None:
        # only the memory of the clock stands still: who would really sleep does not
        end = self.clock.now() + timeout
        due_jobs = [
            job
            for job in self.before.values()
            if job.queue in queues and job.state in (State.SCHEDULED, State.RETRYABLE) and job.run_at < end
        ]
        due_batches = [b for b in self.batches if b.queue in queues and b.due is not None and b.due < end]
        self.both("wait", queues, timeout=timeout if due_jobs or due_batches else 0)

    # operating

    def retry(self, refs: list[int], attempts: int | None, expiry: int | UnsetType | None) -> None:
        self.both("retry", self.refs(refs), attempts=attempts, expires_in=expiry)

    def reschedule(self, refs: list[int], delay: int) -> None:
        self.both("reschedule", self.refs(refs), delay=delay)

    def reschedule_at(self, refs: list[int], at: int) -> None:
        self.both("reschedule", self.refs(refs), run_at=self.clock.now() + at)

    def discard(self, refs: list[int]) -> None:
        self.both("discard", self.refs(refs))

    def complete(self, refs: list[int], result: bytes | None) -> None:
        self.both("complete", self.refs(refs), result=result)

    def change_jobs(self, acts: list[tuple[str, int, dict[str, Any]]]) -> None:
        """Acts of several kinds in one request, some of them on the same job."""
        refs = self.refs([pick for _, pick, _ in acts])

        async def look() -> list[list[Job | None]]:
            return [await store.get(refs) for store in self.stores]

        found = self.loop.run_until_complete(look())
        made = [
            [
                self.act(kind, job, ref, facts)
                for (kind, _, facts), job, ref in zip(acts, jobs, refs, strict=True)
            ]
            for jobs in found
        ]
        self.each("change_jobs", [[one] for one in made])
        self.many_steps = True

    def act(self, kind: str, seen: Job | None, ref: Ref, facts: dict[str, Any]) -> AnyAct:
        if kind == "retry":
            return JobRetry(ref, attempts=facts["attempts"], expires_in=facts["expires_in"])
        compares = seen is not None and not seen.members and seen.spec.flow is None
        if kind == "edit" and seen is not None and compares:
            batch = seen.spec.batch_terms
            partition = facts["partition"] if batch is None else None
            return JobEdit(seen, replace(seen.spec, payload=b"3", partition=partition))
        if kind == "move" and seen is not None and compares and seen.queue != facts["to"]:
            return JobMove(seen, moved_spec(seen, facts["to"]), seen.errors, seen.checkpoint)
        if kind == "reschedule":
            return JobReschedule(ref, delay=facts["delay"])
        return JobDiscard(ref) if kind == "discard" else JobCompletion(ref, result=facts["result"])

    def delete(self, refs: list[int], running: bool) -> None:
        self.both("delete", self.refs(refs), running=running)

    def partition(self, refs: list[int]) -> None:
        for ref in self.refs(refs):
            self.both("partition", ref)

    @initialize(**WALK)
    def walk(
        self, queue: str, way: tuple[State, str], lost: bool, keep: int, batch_terms: BatchTerms | None
    ) -> None:
        """What happens seldom shall happen too: a job is led to a state and goes on from there."""
        to, then = way
        walker, blocker = Ref(queue, "walker"), Ref(queue, "blocker")
        facts: dict[str, Any] = {"queue": queue, "task": "t1", "priority": 1}
        if to is State.WAITING or then == "into a partition":
            facts["partition"] = Partition(f"walk-{self.clock.now()}-{self.clock.lease_now()}")
        elif then != "replace":
            facts["batch_terms"] = batch_terms
        self.both("delete", [walker, blocker])
        self.both("settings", queue, limits=NO_LIMIT, paused=False, closed=False)
        if to is State.WAITING:
            self.enqueue([{"id": "blocker", **facts}, {"id": "walker", **facts}])
            self.both_hold_the_same()
        else:
            self.lead(to, facts, lost, keep)
        if then == "into a partition":
            self.enqueue([{"id": "blocker", **facts}])
            self.both_hold_the_same()
            then = "retry"
        elif then == "its tenant":
            walker, then = blocker, "delete"
        self.clock.advance(1)  # so that what is rescheduled to now is seen to have moved
        if then == "fetch":
            self.announce("w1", TASKS)
            token = f"{len(self.before)}-{self.clock.now()}-{self.clock.lease_now()}+"
            self.fetch([Share(queue, 10, 10)], limit=10, lease=1_000, worker="w1", token=token)
        elif then == "prune":
            self.both("prune", keep_finished=0, keep_dead=0)
        elif then == "replace":
            self.enqueue([{**facts, "id": "runner", "unique": WALK_KEY, "delay": 1_000}])
        elif then in ("now", "later"):
            self.both("reschedule", [walker], delay=1_000 if then == "later" else 0)
        else:
            self.both(then, [walker])

    def lead(self, to: State, walker: dict[str, Any], lost: bool, keep: int) -> None:
        """A new job is fetched and settled."""
        token = f"{len(self.before)}-{self.clock.now()}-{self.clock.lease_now()}"
        facts = {"limit": 10, "lease": 1_000, "worker": "w1", "token": token}
        self.enqueue([{"id": "walker", "unique": WALK_KEY, **walker}])
        self.both_hold_the_same()
        self.fetch([Share(walker["queue"], 10, 10)], **facts)
        self.both_hold_the_same()
        if lost:
            facts["token"] = f"{token}!"
            self.reclaim([], **facts, of=["w1"])
            self.both_hold_the_same()
        self.settle_what_runs([Transition(to, delay=10, keep=keep)] * 5, b"1")
        self.both_hold_the_same()

    def purge(self, queue: str, states: list[State], limit: int) -> None:
        self.both("purge", queue, states, limit=limit)

    def drop(self, queue: str) -> None:
        self.both("drop", queue)

    def flush_batch(self, pick: int) -> None:
        there = self.batches
        one = there[pick % len(there)] if there and pick else BatchInfo("q1", "t1", "nothing", 0, 0, None)
        self.both("flush_batch", one.queue, task=one.task, key=one.key)

    def prune_to_few(self, limit: int, newest: int, dead: int) -> None:
        self.both("prune", limit=limit, keep_finished=newest, keep_dead=dead)

    def prune(self) -> None:
        self.both("prune")

    def settings(self, queue: str, paused: bool | None, closed: bool | None) -> None:
        self.both("settings", queue, paused=paused, closed=closed)

    def limit(self, queue: str, change: LimitChange) -> None:
        self.both("settings", queue, limits=change)

    def announce(self, id: str, tasks: list[str]) -> None:
        self.both("announce", WorkerInfo(id, "host", 1, self.clock.now(), ("q1",), tuple(tasks), 4))

    def retire(self, id: str) -> None:
        self.both("retire", id)

    def page_through(self, **facts: Any) -> None:
        afters: list[str | None] = [None, None]
        while True:
            pages = self.each("page", [[after, facts] for after in afters])
            afters = [page.next for page in pages]
            if afters[0] is None:
                return

    # time

    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)

    def set_the_wall_clock(self, by: int) -> None:
        self.latest = max(self.latest, self.clock.now())
        earliest = self.latest - FURTHEST_BACK.get(self.kind, self.latest)
        for queue in QUEUES:  # a throttle that has ended may count again, or not, when the clock is set back
            if all(info.throttled_until is None for info in self.queues if info.name == queue):
                self.both("settings", queue, limits=LimitChange(throttle=None))
        self.both("prune")  # that of a partition, too, unless the partition is forgotten
        self.clock.set_wall(max(self.clock.now() + by, earliest))

    def open_again(self, after_a_reboot: bool) -> None:
        if after_a_reboot:
            self.clock.reboot(f"{self.clock.boot_id()}+")
        self.open()

    # what must be true after every step

    @invariant()
    def both_hold_the_same(self) -> None:
        async def look(store: Store) -> tuple[Any, ...]:
            return (
                (await store.list_jobs(limit=1_000)).jobs,
                await store.queues(),
                await store.stats(days=90),
                await store.workers(),
                await store.batches(),
            )

        async def look_at_both() -> list[tuple[Any, ...]]:
            return [await look(store) for store in self.stores]

        (jobs, queues, *others), (true_jobs, *true_others) = self.loop.run_until_complete(look_at_both())
        # batches that start in the same instant have no order among the queues, but in each of them
        assert bare([job for job in jobs if not job.members]) == bare(
            [job for job in true_jobs if not job.members]
        )
        for queue in QUEUES:
            assert bare([job for job in jobs if job.queue == queue]) == bare(
                [job for job in true_jobs if job.queue == queue]
            )
        assert [queues, *others] == true_others
        now = {job.generation: job for job in jobs}
        assert list(now) == sorted(now, reverse=True)
        self.counts_are_true(jobs, {queue.name: queue.counts for queue in queues})
        self.batches, self.queues = others[-1], queues
        self.members_are_somewhere(jobs)
        self.steps_are_legal(now)
        for generation in self.before.keys() - now.keys():
            gone = self.before[generation]
            unique = gone.spec.unique
            if unique is not None and unique.period is not None and unique.phases & FINISHED_PHASE:
                self.outlived.add((gone.queue, gone.id, unique.key))
        self.partitions_are_kept(jobs)
        self.before = now

    @staticmethod
    def counts_are_true(jobs: list[Job], shown: dict[str, dict[State, int]]) -> None:
        true: dict[str, Counter[State]] = {}
        for job in jobs:
            true.setdefault(job.queue, Counter())[job.state] += 1
        assert {queue: counts for queue, counts in shown.items() if counts} == true

    def partitions_are_kept(self, jobs: list[Job]) -> None:
        """Nobody waits while there is room."""
        partitions = {}
        for job in jobs:
            if job.state is State.WAITING and job.spec.partition is not None:
                partitions[job.queue, job.spec.partition.key] = job.ref

        async def look() -> list[PartitionInfo | None]:
            return [await self.stores[0].partition(ref) for ref in partitions.values()]

        for info in self.loop.run_until_complete(look()):
            assert info is not None
            assert info.waiting
            assert info.admitted or info.due is not None

    def members_are_somewhere(self, jobs: list[Job]) -> None:
        """Each job in the state collecting is in one collecting batch, or in one running batch."""
        waiting = Counter((g.queue, g.task, g.key) for g in self.batches for _ in range(g.size))
        by_id = {(job.queue, job.id): job for job in jobs}
        for job in jobs:
            if job.state is State.COLLECTING and job.batch is None:
                assert job.spec.batch_terms is not None
                waiting[job.queue, job.task, job.spec.batch_terms.key] -= 1
            elif job.state is State.COLLECTING:
                batch = by_id[job.queue, str(job.batch)]
                assert not batch.ended
                assert job.id in batch.members
            elif job.members and not job.ended:
                members = [by_id[job.queue, id] for id in job.members if (job.queue, id) in by_id]
                assert {m.state for m in members if m.batch == job.id} <= {State.COLLECTING}
        assert not any(waiting.values())

    def steps_are_legal(self, now: dict[int, Job]) -> None:
        if self.many_steps:
            self.many_steps = False
            return
        for generation in self.before.keys() | now.keys():
            before, after = self.before.get(generation), now.get(generation)
            if before == after:
                continue
            step = before and before.state, after and after.state
            if before and after and step[0] is step[1]:
                assert step[0] not in TERMINAL, "an ended job has changed"
                moved = before.token != after.token or before.run_at != after.run_at
                if not moved:
                    continue  # a heartbeat, a request to stop
            steps = AT_ONCE.get(step, [step])
            assert LEGAL.keys() >= set(steps), step
            self.seen.update(steps)


def tours() -> Iterator[Callable[[Verbs], None]]:
    """Every legal step once, for what chance plays may seldom occur. Each walk has a queue of its own.

    After each walk the whole content is compared, so a tour is short.
    """
    for start in range(0, len(WALKS), 4):
        yield functools.partial(walk_all, WALKS[start : start + 4])
    yield from (
        a_batch_is_joined_and_left,
        one_of_a_partition_is_throttled,
        one_is_called_into_a_full_partition,
    )


def walk_all(ways: Sequence[tuple[State, str]], machine: Verbs) -> None:
    for n, way in enumerate(ways):
        for m, (terms, lost, keep) in enumerate(
            ((None, False, HOUR), (BatchTerms("w", 1), False, HOUR), (None, True, 0))
        ):
            machine.walk(f"tour-{n}-{m}", way, lost=lost, keep=keep, batch_terms=terms)
            machine.both_hold_the_same()


def a_batch_is_joined_and_left(machine: Verbs, queue: str = "tour") -> None:
    machine.enqueue_a_late_member(queue)
    machine.join_again(queue)
    machine.enqueue(
        [{"id": "member", "queue": queue, "task": "t1", "batch_terms": BatchTerms("g", 3), "delay": 10}]
    )
    for verb, facts in (
        ("promote", {"limit": 10}),
        ("reschedule", {"delay": 10}),
        ("promote", {"limit": 10}),
        ("delete", {}),
    ):
        machine.both_hold_the_same()
        machine.clock.advance(10)
        machine.both(verb, [queue] if verb == "promote" else [Ref(queue, "member")], **facts)


def one_of_a_partition_is_throttled(machine: Verbs, queue: str = "tour") -> None:
    machine.enqueue([{"id": "one", "queue": queue, "task": "t1", "partition": Partition("l")}])
    machine.both_hold_the_same()
    machine.fetch([Share(queue, 1, 1)], worker="w1", token="throttled", limit=1, lease=1_000)
    machine.both_hold_the_same()
    machine.settle_what_runs([Transition(State.AVAILABLE, charge=False, throttle_partition=1_000)] * 5, None)


def one_is_called_into_a_full_partition(machine: Verbs, queue: str = "tour") -> None:
    machine.enqueue([{"id": "first", "queue": queue, "task": "t1", "partition": Partition("l")}])
    again = {"queue": queue, "task": "t1", "unique": UniqueKey("u", replace=1)}
    machine.enqueue([{"id": "called", **again}])
    machine.both_hold_the_same()
    machine.enqueue([{"id": "again", **again, "partition": Partition("l")}])
    machine.both_hold_the_same()


@pytest.fixture
def machine_of(kind: str) -> Iterator[type[Verbs]]:
    """The machine for a store of this kind, and a place for its files."""
    shared = Path("/dev/shm")
    parent = Path(tempfile.mkdtemp(prefix="penstock-random-", dir=shared if shared.is_dir() else None))
    yield type("Verbs", (Verbs,), {"kind": kind, "seen": Counter(), "parent": parent, "runs": 0})
    shutil.rmtree(parent, ignore_errors=True)


@pytest.mark.slow
def test_every_legal_step_occurs_on_a_tour(machine_of: type[Verbs]) -> None:
    for tour in tours():
        machine = machine_of()
        try:
            tour(machine)
            machine.both_hold_the_same()
        finally:
            machine.teardown()
    assert set(machine.seen) == set(LEGAL), f"these did not occur: {set(LEGAL) - set(machine.seen)}"


@pytest.mark.slow
@pytest.mark.timeout(300 * max(1, FACTOR))
def test_random_verbs_do_what_the_oracle_does(machine_of: type[Verbs], kind: str) -> None:
    run_state_machine_as_test(
        machine_of,
        settings=settings(
            max_examples=RUNS[kind] * max(1, FACTOR),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not FACTOR,
            phases=[Phase.generate, *([Phase.shrink] if FACTOR else [])],
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
    assert machine_of.runs >= RUNS[kind]
