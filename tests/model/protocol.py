"""A model of jobs under leases, in which every process may be slow, cut off, or die at any step.

Decisions are made by the real code: `lifecycle.decide`, `lifecycle.first_state`, the reclaimer's `judge`, and
the executor's rule about recording starts. The store is modelled after its contract, one verb at a time
(`ModelStore`). The worker is modelled as messages between those verbs (`LeaseProtocol`).

Time is abstract: at any step a scheduled job may become due and a lease may expire. A slow, stopped or
cut-off worker takes no steps meanwhile. A message may be lost, its answer may be lost, or it may be delivered
at any later step.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

from penstock.app.deciding import Loss, settle_reclaimed
from penstock.core.job import QUEUED, TERMINAL, AttemptError, Job, NewJob, State
from penstock.core.lifecycle import decide, first_state, starts_on_record
from penstock.core.outcomes import (
    Cancelled,
    DecodingFailed,
    LeaseLost,
    Outcome,
    Raised,
    Released,
    Returned,
    Snoozed,
    Unknown,
)
from penstock.stores.contract import Fetched, Settled, Settlement, Store
from tests.model.checker import Step

__all__ = [
    "Act",
    "HeldLease",
    "Kept",
    "LeaseProtocol",
    "ModelStore",
    "Move",
    "Phase",
    "Possible",
    "Process",
    "Told",
    "World",
    "put",
]

NOW = 1_700_000_000_000
ERROR = AttemptError(1, NOW, "ValueError", "no luck")

# ── what there is ────────────────────────────────────────────────────────────────────────────────


class Kept(NamedTuple):
    """A job as the store has it; `state` None: it is not there. What the store does not know, and the
    promises are about: how often it has ended, and how many of its charged attempts have begun."""

    state: State | None = None
    attempt: int = 0
    lost: bool = False
    token: int = 0
    owner: int = -1
    started: bool = False
    asked: bool = False  # to stop
    run_out: bool = False  # its lease
    lost_by: bool = False  # its reason names who lost it: its holder is to judge, not to run it
    due: bool = False
    ends: int = 0
    begun: int = 0


class Move(NamedTuple):
    """A `Transition`, as far as it matters here."""

    state: State
    later: bool
    charge: bool
    lost: bool
    keep: bool


class Told:
    """What a producer knows of its job."""

    NOTHING = 0  # not sent yet
    UNSURE = 1  # sent, and no answer
    STORED = 2  # acknowledged


class Phase:
    """How far a worker is with a job."""

    LEASED = 0
    RECORDED = 1  # its start is in the store
    RUNNING = 2
    ENDING = 3  # its outcome is to be settled


class HeldLease(NamedTuple):
    """A job in the hand of a process, with what it was told of it. `began`: its function has; `past`: an
    operator has made the job as new since. A token that is no longer the job's is STALE."""

    token: int
    phase: int = Phase.LEASED
    attempt: int = 0
    lost: bool = False
    began: bool = False
    past: bool = False
    move: Move | None = None


STALE = -1


class Process(NamedTuple):
    """A worker. `asking`: the token of a fetch that had no answer. Per job an attempt, and one that it
    has reclaimed and judges. Of a dead one its attempts are left: its lease table."""

    alive: bool
    asking: int
    holds: tuple[HeldLease | None, ...]
    judging: tuple[HeldLease | None, ...]


#: Where an `Act` is about no one job.
NO_JOB, BOTH = -1, -2


class World(NamedTuple):
    jobs: tuple[Kept, ...]
    told: tuple[int, ...]
    processes: tuple[Process, ...]
    late: tuple[tuple[Any, ...], ...] = ()  # messages under way: verb, job, and what they carry
    faults: int = 0  # how many more there may be


class Act(NamedTuple):
    """Who does what to which job, and shows which token."""

    who: str
    verb: str
    job: int
    token: int = 0
    note: str = ""

    def __str__(self) -> str:
        job = {NO_JOB: "", BOTH: " both jobs"}.get(self.job, f" job {'ab'[self.job]}")
        return f"{self.who} {self.verb}{job}" + (f": {self.note}" if self.note else "")


# ── the store, by its contract ───────────────────────────────────────────────────────────────────


class ModelStore:
    """One function per verb: a job before and after."""

    def enqueue(self, job: Kept, spec: NewJob, *, remembered: bool) -> Kept:
        """A repeat is told that the id EXISTS, while the job is there or its id is remembered."""
        if job.state is not None or (job.ends and remembered):
            return job
        state, due = first_state(spec, NOW)
        return Kept(state, due=due <= NOW, ends=job.ends, begun=job.begun)

    def promote(self, job: Kept) -> Kept | None:
        if job.state in (State.SCHEDULED, State.RETRYABLE) and job.due:
            return job._replace(state=State.AVAILABLE)
        return None

    def may_fetch(self, job: Kept) -> bool:
        return job.state in (State.AVAILABLE, State.PARKED)

    def fetch(self, job: Kept, process: int, token: int) -> Kept:
        return job._replace(
            state=State.RUNNING,
            attempt=job.attempt + 1,
            token=token,
            owner=process,
            started=False,
            lost_by=False,
        )

    def extend(self, job: Kept, token: int, *, started: bool) -> tuple[Kept, bool]:
        """Also whether the lease holds."""
        if job.token != token:
            return job, False
        return job._replace(run_out=False, started=job.started or started), True

    def settle(self, job: Kept, token: int, move: Move) -> tuple[Kept, Settled]:
        if job.token != token:
            return job, Settled.STALE if job.state is not None else Settled.GONE
        ended = move.state in TERMINAL
        job = job._replace(
            state=move.state if move.keep or not ended else None,
            attempt=job.attempt - (not move.charge),
            lost=job.lost or move.lost,
            token=0,
            owner=-1,
            started=False,
            run_out=False,
            lost_by=False,
            due=not move.later,
            ends=job.ends + ended,
        )
        return job, Settled.APPLIED

    def reclaim(self, job: Kept, process: int, token: int) -> Kept:
        return job._replace(token=token, owner=process, run_out=False, lost_by=True)

    def may_reclaim(self, job: Kept) -> bool:
        return job.state is State.RUNNING and job.run_out

    def cancel(self, job: Kept) -> Kept | None:
        if job.state in QUEUED:
            return job._replace(state=State.CANCELLED, ends=job.ends + 1)
        if job.state is State.RUNNING and not job.asked:
            return job._replace(asked=True)
        return None

    def retry(self, job: Kept) -> Kept | None:
        if job.state is None or job.state is State.RUNNING:
            return None
        return Kept(State.AVAILABLE, due=True)

    def reschedule(self, job: Kept) -> Kept | None:
        """To a time to come."""
        if job.state in QUEUED and job.state is not State.PARKED:
            return job._replace(state=State.SCHEDULED, due=False)
        return None

    def delete(self, job: Kept) -> Kept | None:
        if job.state is None or job.state is State.RUNNING:
            return None
        return job._replace(state=None, ends=1)


# ── those around it ──────────────────────────────────────────────────────────────────────────────


class LeaseProtocol:
    """All that may happen to these jobs. `faults`: at most so many crashes, lost and late messages, leases
    that run out on the living, acts of operators and attempts that do not just succeed; None: any number.

    `late` is how many messages may be under way at once. A producer repeats what had no answer only with an
    id that is `remembered`.
    """

    def __init__(
        self,
        *specs: NewJob,
        processes: int = 2,
        faults: int | None = None,
        late: int = 1,
        remembered: bool = True,
        operators: bool = True,
        store: ModelStore | None = None,
    ) -> None:
        self.specs = specs
        self.store = store or ModelStore()
        self._faults = faults
        self._late = late
        self._remembered = remembered
        self._operators = operators
        self._processes = processes
        self._names = [f"W{n + 1}" for n in range(processes)]

    def first(self) -> World:
        nothing = (None,) * len(self.specs)
        return World(
            jobs=(Kept(),) * len(self.specs),
            told=(Told.NOTHING,) * len(self.specs),
            processes=(Process(True, 0, nothing, nothing),) * self._processes,
            faults=self._faults or 0,
        )

    def steps(self, world: World) -> Iterator[Step]:
        if self._faults is None:
            for what, after, helps, _ in self._all(world):
                yield Step(what, after, helps)
            return
        for what, after, helps, fault in self._all(world):
            if not fault:
                yield Step(what, after, helps)
            elif world.faults > 0:
                yield Step(what, after._replace(faults=after.faults - 1), helps)

    def plain(self, world: World) -> World:
        return _plain(world, self.specs)

    def _all(self, world: World) -> Iterable[Possible]:
        return chain(
            *(chain(self.produce(world, j), self._operate(world, j)) for j in range(len(self.specs))),
            *(self._pass_time(world, j) for j in range(len(self.specs))),
            self._deliver(world),
            *(self._work(world, p) for p in range(self._processes) if not _is_as_the_one_before(world, p)),
        )

    # ── producers ──

    def produce(self, world: World, j: int) -> Iterator[Possible]:
        told = world.told[j]
        if told == Told.STORED or (told == Told.UNSURE and not self.repeats()):
            return
        sent = _job(world, j, self._enqueued(world.jobs[j], j))
        act = Act("the producer", "enqueues", j)
        yield Possible(act, self.acknowledged(sent, j))
        unsure = put(world.told, j, Told.UNSURE)
        lost = world._replace(told=unsure)
        yield Possible(act._replace(note="the answer is lost"), sent._replace(told=unsure), False, True)
        yield Possible(act._replace(note="the request is lost"), lost, False, True)
        if self._has_room(world):
            after = _send(lost, ("enqueue", j))
            yield Possible(act._replace(note="the request is late"), after, False, True)

    def acknowledged(self, world: World, j: int) -> World:
        return world._replace(told=put(world.told, j, Told.STORED))

    def repeats(self) -> bool:
        return self._remembered

    def _enqueued(self, job: Kept, j: int) -> Kept:
        return self.store.enqueue(job, self.specs[j], remembered=self._remembered)

    # ── operators and time ──

    def _operate(self, world: World, j: int) -> Iterator[Possible]:
        job, store = world.jobs[j], self.store
        if not self._operators:
            return
        for verb, after in (
            ("cancels", store.cancel(job)),
            ("puts off", store.reschedule(job)),
            ("deletes", store.delete(job) if world.told[j] == Told.STORED else None),
        ):
            if after is not None:
                yield Possible(Act("an operator", verb, j), _job(world, j, after), False, True)
        anew = store.retry(job)
        if anew is not None:
            after_all = _job(world, j, anew)._replace(processes=tuple(_past(p, j) for p in world.processes))
            yield Possible(Act("an operator", "retries", j), after_all, False, True)

    def _pass_time(self, world: World, j: int) -> Iterator[Possible]:
        job = world.jobs[j]
        if job.state in (State.SCHEDULED, State.RETRYABLE) and not job.due:
            yield Possible(Act("time", "comes for", j), _job(world, j, job._replace(due=True)))
        if job.state is State.RUNNING and not job.run_out:
            after = _job(world, j, job._replace(run_out=True))
            cut_off = _is_held(world, j)
            yield Possible(Act("the lease", "runs out on", j), after, True, cut_off)
        due = self.store.promote(job)
        if due is not None:
            yield Possible(Act("somebody", "promotes", j), _job(world, j, due))

    # ── messages that are late ──

    def _deliver(self, world: World) -> Iterator[Possible]:
        for n, message in enumerate(world.late):
            rest = world._replace(late=world.late[:n] + world.late[n + 1 :])
            verb, j, *what = message
            act = Act("the network", f"delivers a late {verb} of", j)
            job = rest.jobs[j]
            if verb == "enqueue":
                job = self._enqueued(job, j)
            elif verb == "heartbeat":
                token, started = what
                act = act._replace(token=token)
                job, _ = self.store.extend(job, token, started=started)
            else:
                token, move, began = what
                act = act._replace(token=token, note=_worded(move))
                job = self._settled(job, token, move, began)[0]
            yield Possible(act, _job(rest, j, job), False)

    def _has_room(self, world: World) -> bool:
        return len(world.late) < self._late

    # ── workers ──

    def _work(self, world: World, p: int) -> Iterator[Possible]:
        if not world.processes[p].alive:
            nothing = (None,) * len(self.specs)
            fresh = Process(True, 0, nothing, nothing)
            # another worker by name: what the dead one held is known to be nobody's no more
            jobs = tuple(job._replace(owner=-1) if job.owner == p else job for job in world.jobs)
            after = _process(world._replace(jobs=jobs), p, fresh)
            yield Possible(Act(self._names[p], "starts anew", NO_JOB), after)
            return
        yield from self._fetch(world, p)
        for j in range(len(self.specs)):
            hold = world.processes[p].holds[j]
            if hold is not None:
                yield from self._advance(world, p, j, hold)
            judged = world.processes[p].judging[j]
            if judged is not None:
                yield from self._settle(world, p, j, judged, "judging")
            yield from self._reclaim(world, p, j)
        yield from self._crash(world, p)

    def _crash(self, world: World, p: int) -> Iterator[Possible]:
        process = world.processes[p]
        table = tuple(
            None if hold is None else HeldLease(hold.token, began=hold.began) for hold in process.holds
        )
        dead = Process(False, 0, table, (None,) * len(self.specs))
        yield Possible(Act(self._names[p], "dies", NO_JOB), _process(world, p, dead), False, True)

    def _fetch(self, world: World, p: int) -> Iterator[Possible]:
        """One token is asked with until there is an answer, and leases no more while anything is leased
        under it."""
        process = world.processes[p]
        token = process.asking or _new_token(world)
        free = [j for j, hold in enumerate(process.holds) if hold is None]
        under = [j for j, job in enumerate(world.jobs) if process.asking and job.token == token]
        ready = [j for j in free if self.store.may_fetch(world.jobs[j])]
        choices = [under] if under else [[j] for j in ready] + ([ready] if len(ready) > 1 else [])
        for choice in choices:
            jobs = world.jobs
            for j in choice:
                if not under:
                    jobs = put(jobs, j, self.store.fetch(jobs[j], p, token))
            act = Act(self._names[p], "fetches", choice[0] if len(choice) == 1 else BOTH, token)
            holds = process.holds
            for j in choice:
                holds = put(holds, j, self._taken(jobs[j], j))
            leased = world._replace(jobs=jobs)
            yield Possible(act, _process(leased, p, process._replace(asking=0, holds=holds)))
            if not under:
                asking = _process(leased, p, process._replace(asking=token))
                yield Possible(act._replace(note="the answer is lost"), asking, False, True)
        if process.asking and not choices:
            nothing = process._replace(asking=0)
            yield Possible(Act(self._names[p], "fetches nothing", NO_JOB), _process(world, p, nothing))

    def _taken(self, job: Kept, j: int) -> HeldLease:
        hold = HeldLease(job.token, attempt=job.attempt, lost=job.lost)
        return self._ended(hold, j, "cancelled") if job.asked else hold

    def _advance(self, world: World, p: int, j: int, hold: HeldLease) -> Iterator[Possible]:
        if hold.phase == Phase.ENDING:
            yield from self._settle(world, p, j, hold, "holds")
            return
        on_record = hold.phase == Phase.LEASED and self.starts_on_record(j, hold)
        if on_record:
            yield from self._record(world, p, j, hold)
        elif hold.phase != Phase.RUNNING:
            yield Possible(Act(self._names[p], "starts", j, hold.token), self._started(world, p, j, hold))
        else:
            yield from self._heartbeat(world, p, j, hold)
        outcomes = _OUTCOMES[hold.phase]
        for outcome, helps in outcomes if hold.token != STALE else outcomes[:1]:  # all come to the same
            act = Act(self._names[p], "ends its attempt of", j, 0, outcome)
            after = _hold(world, p, j, self._ended(hold, j, outcome))
            yield Possible(act, after, helps, not helps)

    def starts_on_record(self, j: int, hold: HeldLease) -> bool:
        return starts_on_record(_job_of(self.specs[j], hold.attempt, hold.lost, started=False))

    def _started(self, world: World, p: int, j: int, hold: HeldLease) -> World:
        job = world.jobs[j]
        if not hold.past:
            world = _job(world, j, job._replace(begun=job.begun + 1))
        return _hold(world, p, j, hold._replace(phase=Phase.RUNNING, began=True))

    def _record(self, world: World, p: int, j: int, hold: HeldLease) -> Iterator[Possible]:
        """Its start goes into the store, and only then does it begin; what had no answer goes back."""
        act = Act(self._names[p], "records the start of", j, hold.token)
        job, holds = self.store.extend(world.jobs[j], hold.token, started=True)
        stored = _job(world, j, job)
        yield Possible(act, self._heard(stored, p, j, hold._replace(phase=Phase.RECORDED), holds=holds))
        given_back = _hold(world, p, j, self._ended(hold, j, "released"))
        yield Possible(act._replace(note="the answer is lost"), _job(given_back, j, job), False, True)
        yield Possible(act._replace(note="the request is lost"), given_back, False, True)
        if self._has_room(world):
            late = _send(given_back, ("heartbeat", j, hold.token, True))
            yield Possible(act._replace(note="the request is late"), late, False, True)

    def _heartbeat(self, world: World, p: int, j: int, hold: HeldLease) -> Iterator[Possible]:
        act = Act(self._names[p], "extends", j, hold.token)
        before = world.jobs[j]
        job, holds = self.store.extend(before, hold.token, started=True)
        yield Possible(act, self._heard(_job(world, j, job), p, j, hold, holds=holds))
        if job != before:
            yield Possible(act._replace(note="the answer is lost"), _job(world, j, job), False, True)
        if holds and self._has_room(world):
            late = _send(world, ("heartbeat", j, hold.token, True))
            yield Possible(act._replace(note="the request is late"), late, False, True)

    def _heard(self, world: World, p: int, j: int, hold: HeldLease, *, holds: bool) -> World:
        """What the answer to a heartbeat brings: go on, stop, or leave it to another."""
        if not holds:
            return _hold(world, p, j, None)
        return _hold(world, p, j, self._ended(hold, j, "cancelled") if world.jobs[j].asked else hold)

    def _ended(self, hold: HeldLease, j: int, outcome: str) -> HeldLease:
        move = _decided(self.specs[j], hold.attempt, hold.lost, hold.began, outcome)
        return HeldLease(hold.token, Phase.ENDING, began=hold.began, past=hold.past, move=move)

    def _settle(self, world: World, p: int, j: int, hold: HeldLease, where: str) -> Iterator[Possible]:
        """Repeated until it is answered."""
        move = cast(Move, hold.move)
        act = Act(self._names[p], "settles", j, hold.token, _worded(move))
        refunds = hold.began and where == "holds"
        job, answer = self._settled(world.jobs[j], hold.token, move, refunds)
        stored = _job(world, j, job)
        done = act._replace(note=f"{act.note}, {answer.value}")
        yield Possible(done, _hold(stored, p, j, None, where))
        if answer is Settled.APPLIED:
            unheard = act._replace(note=f"{act.note}, {answer.value}, the answer is lost")
            yield Possible(unheard, stored, False, True)
            if self._has_room(world):
                late = _send(world, ("settle", j, hold.token, move, refunds))
                yield Possible(act._replace(note="the request is late"), late, False, True)

    def _settled(self, job: Kept, token: int, move: Move, refunds: bool) -> tuple[Kept, Settled]:
        """An attempt that has begun and asks for another is no longer counted."""
        after, answer = self.store.settle(job, token, move)
        if answer is Settled.APPLIED and refunds and not move.charge:
            after = after._replace(begun=after.begun - 1)
        return after, answer

    def _reclaim(self, world: World, p: int, j: int) -> Iterator[Possible]:
        """By the lease's end, or by proof of death: then what the dead one's table says is believed."""
        job, process = world.jobs[j], world.processes[p]
        if job.state is not State.RUNNING or process.judging[j] is not None:
            return
        token = _new_token(world)
        if self.store.may_reclaim(job):
            yield from self._reclaimed(world, p, j, token, "its lease has run out", begun=True)
        if job.owner >= 0 and not world.processes[job.owner].alive:
            entry = world.processes[job.owner].holds[j]
            begun = self.table_says(job, entry)
            said = "begun" if begun else "not begun"
            yield from self._reclaimed(world, p, j, token, f"its worker is dead, {said}", begun=begun)

    def table_says(self, job: Kept, entry: HeldLease | None) -> bool:
        """What the supervisor of a dead worker takes from its table: whether the attempt had begun."""
        if job.lost_by:
            return True  # the attempt was another's
        return entry.began if entry is not None and entry.token == job.token else job.started

    def _reclaimed(
        self, world: World, p: int, j: int, token: int, note: str, *, begun: bool
    ) -> Iterator[Possible]:
        job = self.store.reclaim(world.jobs[j], p, token)
        after = _job(world, j, job)
        act = Act(self._names[p], "reclaims", j, token, note)
        move = self.judged(job, j, begun=begun)
        judged = HeldLease(job.token, Phase.ENDING, move=move)
        yield Possible(act, _hold(after, p, j, judged, "judging"))
        yield Possible(act._replace(note=f"{note}, the answer is lost"), after, False, True)

    def judged(self, job: Kept, j: int, *, begun: bool) -> Move:
        return _judged(self.specs[j], job.attempt, job.lost, job.started, begun)


class Possible(NamedTuple):
    what: Act
    after: World
    helps: bool = True
    fault: bool = False


# ── what the code decides ────────────────────────────────────────────────────────────────────────

#: How an attempt may end in each phase, and whether that is what is hoped for.
_OUTCOMES: dict[int, list[tuple[str, bool]]] = {
    Phase.LEASED: [("released", False), ("unknown", False), ("undecodable", False)],
    Phase.RECORDED: [],
    Phase.RUNNING: [
        ("returned", True),
        ("raised", False),
        ("raised, again at once", False),
        ("snoozed", False),
        ("released", False),
    ],
}


def _outcome(spec: NewJob, began: bool, name: str) -> Outcome:
    match name:
        case "returned":
            return Returned()
        case "raised":
            return Raised(ERROR)
        case "raised, again at once":
            return Raised(ERROR, delay=0)
        case "snoozed":
            return Snoozed(1_000)
        case "cancelled":
            return Cancelled()
        case "unknown":
            return Unknown()
        case "undecodable":
            return DecodingFailed(ERROR)
        case _:  # as `Executor.release_running` has it
            return LeaseLost(ERROR, started=began) if spec.at_most_once and began else Released()


@functools.cache
def _decided(spec: NewJob, attempt: int, lost: bool, began: bool, outcome: str) -> Move:
    job = _job_of(spec, attempt, lost, started=began)
    return _move(decide(job, _outcome(spec, began, outcome), NOW))


@functools.cache
def _judged(spec: NewJob, attempt: int, lost: bool, started: bool, begun: bool) -> Move:
    """By the reclaimer's own rule."""
    job = _job_of(spec, attempt, lost, started=started)
    recorder = _SettlementRecorder()
    found = Fetched([job], NOW)

    def known(_: Job) -> bool | None:
        return None if begun else False

    loss = Loss("LeaseLost", "gone", started=known)
    asyncio.run(settle_reclaimed(cast(Store, recorder), found, loss))
    (settlement,) = recorder.settlements
    return _move(settlement.transition)


class _SettlementRecorder:
    """A store that records settlements and applies each."""

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        self.settlements += settlements
        return [Settled.APPLIED] * len(settlements)


@functools.cache
def _job_of(spec: NewJob, attempt: int, lost: bool, *, started: bool) -> Job:
    return Job(
        spec, State.RUNNING, attempt=attempt, lost=int(lost), token="t", started=started, enqueued_at=NOW
    )


def _move(to: Any) -> Move:
    return Move(to.state, to.delay > 0, to.charge, to.lost, to.keep > 0)


def _worded(move: Move) -> str:
    return move.state.value + ("" if move.charge else ", uncharged")


# ── changing a world ─────────────────────────────────────────────────────────────────────────────


def put(all: tuple[Any, ...], n: int, one: Any) -> tuple[Any, ...]:
    return (*all[:n], one, *all[n + 1 :])


def _job(world: World, j: int, job: Kept) -> World:
    jobs, told, processes, late, faults = world  # `_replace` takes three times as long
    return World(put(jobs, j, job), told, processes, late, faults)


def _process(world: World, p: int, process: Process) -> World:
    jobs, told, processes, late, faults = world
    return World(jobs, told, put(processes, p, process), late, faults)


def _hold(world: World, p: int, j: int, hold: HeldLease | None, where: str = "holds") -> World:
    alive, asking, holds, judging = world.processes[p]
    if where == "holds":
        return _process(world, p, Process(alive, asking, put(holds, j, hold), judging))
    return _process(world, p, Process(alive, asking, holds, put(judging, j, hold)))


def _is_as_the_one_before(world: World, p: int) -> bool:
    """Whether the same may happen by this process as by the one before it."""
    if not p or world.processes[p] != world.processes[p - 1]:
        return False
    return all(job.owner not in (p, p - 1) for job in world.jobs)


def _send(world: World, message: tuple[Any, ...]) -> World:
    return world._replace(late=(*world.late, message))


def _is_held(world: World, j: int) -> bool:
    """Whether a living process knows that it has the lease."""
    token = world.jobs[j].token
    return any(
        process.alive
        and (
            process.asking == token
            or any(
                hold is not None and hold.token == token for hold in (process.holds[j], process.judging[j])
            )
        )
        for process in world.processes
    )


def _past(process: Process, j: int) -> Process:
    hold = process.holds[j]
    if hold is None:
        return process
    return process._replace(holds=put(process.holds, j, hold._replace(past=True)))


def _new_token(world: World) -> int:
    """One that nobody has, and no message shows."""
    used = [job.token for job in world.jobs]
    for process in world.processes:
        used.append(process.asking)
        used += [hold.token for hold in (*process.holds, *process.judging) if hold is not None]
    used += [message[2] for message in world.late if message[0] != "enqueue"]
    return max(0, *used) + 1


# ── which worlds are one ─────────────────────────────────────────────────────────────────────────


def _plain(world: World, specs: Sequence[NewJob]) -> World:
    """Worlds in which the same may happen are one. Tokens are numbered as the jobs have them; what shows one
    that holds nothing any more says no more than that; and one worker is as good as another."""
    names: dict[int, int] = {0: 0}
    for job in world.jobs:
        names.setdefault(job.token, len(names))
    jobs = tuple(_plain_job(job, names) for job in world.jobs)
    processes = [_plain_process(world, p, names, specs) for p in range(len(world.processes))]
    order = sorted(range(len(processes)), key=lambda p: (_key(processes[p]), _owns(jobs, p)))
    if order != sorted(order):
        place = {was: now for now, was in enumerate(order)}
        jobs = tuple(job if job.owner < 0 else job._replace(owner=place[job.owner]) for job in jobs)
        processes = [processes[was] for was in order]
    late = world.late and tuple(sorted(_plain_messages(world, names)))
    return World(jobs, world.told, tuple(processes), late, world.faults)


def _plain_job(job: Kept, names: dict[int, int]) -> Kept:
    if job.state is None or job.state in TERMINAL:
        return job._replace(lost=False, token=names[job.token], asked=False, due=False)
    return job if job.token == names[job.token] else job._replace(token=names[job.token])


def _plain_process(world: World, p: int, names: dict[int, int], specs: Sequence[NewJob]) -> Process:
    process, jobs = world.processes[p], world.jobs
    holds = process.holds
    if any(holds):
        holds = tuple(
            # the table of a dead worker says nothing of jobs that are not its any more
            hold
            and (_plain_hold(hold, jobs[j], names, specs[j]) if process.alive or jobs[j].owner == p else None)
            for j, hold in enumerate(holds)
        )
    judging = process.judging
    if any(judging):
        judging = tuple(
            hold and _plain_hold(hold, jobs[j], names, specs[j]) for j, hold in enumerate(judging)
        )
    # one that nothing is leased under is as good as a new one
    return Process(process.alive, names.get(process.asking, 0), holds, judging)


def _plain_hold(hold: HeldLease, job: Kept, names: dict[int, int], spec: NewJob) -> HeldLease:
    if hold.token == job.token:
        return hold if hold.token == names[hold.token] else hold._replace(token=names[hold.token])
    if hold.phase == Phase.ENDING:
        return _TOO_LATE
    if hold.phase == Phase.RUNNING:
        return _RUNS_ON
    attempt = spec.max_attempts if hold.attempt >= spec.max_attempts else 1
    return HeldLease(STALE, hold.phase, attempt=attempt, began=hold.began, past=hold.past)


#: What is left of an attempt whose job is another's by now.
_RUNS_ON = HeldLease(STALE, Phase.RUNNING, began=True)
_TOO_LATE = HeldLease(STALE, Phase.ENDING, began=True, move=Move(State.COMPLETED, False, True, False, True))


def _plain_messages(world: World, names: dict[int, int]) -> Iterator[tuple[Any, ...]]:
    for verb, j, *what in world.late:
        if verb == "enqueue":
            yield verb, j
        elif what[0] == world.jobs[j].token:
            yield verb, j, names[what[0]], *what[1:]


def _key(process: Process) -> tuple[Any, ...]:
    return (
        process.alive,
        process.asking,
        [hold or () for hold in process.holds],
        [hold or () for hold in process.judging],
    )


def _owns(jobs: Sequence[Kept], p: int) -> list[bool]:
    return [job.owner == p for job in jobs]
