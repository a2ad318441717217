"""A model of durable steps: runs of one job that store the answers of its operations, one command at a time.

The job has up to two branches, with a loop of two items, a step that fails, and a wait for a signal. A run
reads what is stored when it is fetched, and then each of its branches does its next operation: it takes the
stored answer, or calls a function (an *effect*) and stores what came of it. A run may be killed between any
two commands, which also loses what it had in memory; the reply of a command may be lost; a run that stands
still loses its lease to another, and goes on. Meanwhile another release may be deployed.

The commands are those of the contract: `record_steps`, `await_signals`, `forget_steps` and `settle` under the
token of the lease, `fetch`, `reclaim`, `send_signals`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.model.checker import Step

__all__ = ["Answer", "End", "J", "Job", "Operation", "Phase", "Run", "StepAct", "StepProtocol", "StepWorld"]


class J(enum.IntEnum):
    """The state of the job."""

    READY = 0
    RUNNING = 1
    SUSPENDED = 2
    COMPLETED = 3
    PARKED = 4


class Phase(enum.IntEnum):
    """What a branch does next."""

    NEXT = 0  # its next operation
    CALLED = 1  # store what came of the function that it has called
    WAITS = 2  # nothing, until the run is suspended
    DONE = 3


class End(enum.IntEnum):
    """How a run ends, when the functions that it has called have been stored."""

    NONE = 0
    SUSPENDS = 1
    FAILS = 2
    FAILS_WITH = 3  # the failure of a step: it is forgotten
    PARKS = 4
    COMPLETES = 5


class Operation(NamedTuple):
    """One call of the code. `label` is which one it is, for the judge; `name`: under which it is stored.

    `head`: what the code asks for. `fails`: its first call does. `after`: only after this answer.
    """

    label: str
    kind: str  # step, wait
    name: str
    head: str = "f"
    fails: bool = False
    caught: bool = False
    timeout: bool = False
    after: tuple[str, str] | None = None


class Answer(NamedTuple):
    """A stored answer: for what was asked, of which call, and what. A wait that goes on has none."""

    head: str
    label: str
    value: str


class Branch(NamedTuple):
    at: int = 0
    phase: Phase = Phase.NEXT


class Run(NamedTuple):
    """One run. `known`: the steps as it knows them. `failed`: the stored failure that ends it."""

    token: int
    release: int
    branches: tuple[Branch, ...]
    known: tuple[tuple[str, Answer | None], ...]
    end: End = End.NONE
    failed: str = ""
    tidy: bool = False  # what is to be forgotten was forgotten


class Job(NamedTuple):
    """The job as it is stored. `woken`: its signal has come while it ran."""

    state: J = J.READY
    token: int = 0
    steps: tuple[tuple[str, Answer | None], ...] = ()
    woken: bool = False


class StepWorld(NamedTuple):
    """All there is. `answers`: what the code has gone on with; `wrong`: the label of one that was another."""

    job: Job
    runs: tuple[Run, ...] = ()
    signal: str = ""  # "", sent (stored in the box), taken
    late: bool = False  # the timeout is over
    release: int = 0
    faults: int = 0
    calls: tuple[tuple[str, int], ...] = ()
    settled: frozenset[str] = frozenset()  # calls whose failure the store has
    excused: tuple[tuple[str, int], ...] = ()
    answers: tuple[tuple[str, Answer], ...] = ()
    wrong: str = ""
    withdrawn: bool = False  # a run of the later release was suspended


class StepAct(NamedTuple):
    who: str
    does: str
    what: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


@functools.cache
def _text_of(run: Run) -> str:
    """Some order among runs. The same few hundred runs are part of thousands of states."""
    return repr(run)


class StepProtocol:
    """The rules. Broken variants override some of them."""

    def __init__(
        self,
        *releases: tuple[tuple[Operation, ...], ...],
        faults: int = 2,
        kinds: Iterable[str] = ("kill", "lose", "stall"),
        late_signal: bool = False,
    ) -> None:
        self.releases = releases
        self.faults = faults
        self.kinds = frozenset(kinds)
        self.late_signal = late_signal  # it is sent only after the later release was suspended

    def first(self) -> StepWorld:
        return StepWorld(Job(), faults=self.faults)

    def plain(self, state: StepWorld) -> StepWorld:
        """Tokens count only as the one that holds, and others; what a stale run was told does not count."""
        holds = state.job.token
        runs = tuple(run._replace(token=int(run.token == holds)) for run in state.runs)
        runs = runs if len(runs) < 2 else tuple(sorted(runs, key=_text_of))
        return state._replace(job=state.job._replace(token=1), runs=runs)

    def operations(self, run: Run) -> tuple[tuple[Operation, ...], ...]:
        return self.releases[run.release]

    # ── what may happen ──

    def steps(self, state: StepWorld) -> Iterator[Step]:
        job = state.job
        if job.state in (J.COMPLETED, J.PARKED):
            return
        for n, run in enumerate(state.runs):
            yield from self._run(state, n, run)
        if job.state is J.READY:
            yield Step(StepAct("a worker", "fetches"), self._fetched(state))
        alive = any(run.token == job.token for run in state.runs)
        if job.state is J.RUNNING and not alive:
            yield Step(StepAct("a worker", "reclaims"), self._ready(state))
        if job.state is J.RUNNING and alive and state.faults and "stall" in self.kinds:
            yield Step(StepAct("a worker", "reclaims, though the run is alive"), self._stalled(state), False)
        if not state.signal and (state.withdrawn or not self.late_signal):
            yield from (Step(StepAct("a sender", "sends"), after) for after in self._sent(state))
        if not state.late:
            yield Step(StepAct("the timeout", "is over"), self._late(state))
        if state.release + 1 < len(self.releases):
            deployed = state._replace(release=state.release + 1)
            yield Step(StepAct("another release", "is deployed"), deployed, self.late_signal)
        elif self.late_signal and job.state is J.SUSPENDED and not state.withdrawn:
            yield Step(StepAct("the flow", "looks again"), self._ready(state))

    def _fetched(self, state: StepWorld) -> StepWorld:
        token = state.job.token + 1
        job = state.job._replace(state=J.RUNNING, token=token, woken=False)
        branches = tuple(Branch() for _ in self.releases[state.release])
        run = Run(token, state.release, branches, job.steps)
        return state._replace(job=job, runs=(*state.runs, run))

    def _ready(self, state: StepWorld) -> StepWorld:
        return state._replace(job=state.job._replace(state=J.READY))

    def _stalled(self, state: StepWorld) -> StepWorld:
        """The lease is somebody else's; what the run has called and not stored is lost."""
        (run,) = [run for run in state.runs if run.token == state.job.token]
        token = state.job.token + 1  # that of the one who reclaims it
        job = state.job._replace(state=J.READY, token=token)
        return self._excused(state, run)._replace(job=job, faults=state.faults - 1)

    def _excused(self, state: StepWorld, run: Run, *, only: int | None = None) -> StepWorld:
        excused = dict(state.excused)
        for n, branch in enumerate(run.branches):
            if branch.phase is Phase.CALLED and only in (None, n):
                label = self.operations(run)[n][branch.at].label
                excused[label] = excused.get(label, 0) + 1
        return state._replace(excused=tuple(sorted(excused.items())))

    def _sent(self, state: StepWorld) -> Iterator[StepWorld]:
        """send_signals: to any of the steps that wait for it, else into the box."""
        job = state.job
        waiting = [name for name, answer in job.steps if answer is None]
        for name in waiting:
            steps = put_step(job.steps, name, Answer("signal", "", "signal"))
            ready = J.READY if job.state is J.SUSPENDED else job.state
            yield state._replace(job=job._replace(steps=steps, state=ready, woken=True), signal="taken")
        if not waiting:
            yield state._replace(signal="sent")

    def _late(self, state: StepWorld) -> StepWorld:
        job, after = state.job, state._replace(late=True)
        timed = any(one.timeout for branch in self.releases[state.release] for one in branch)
        if job.state is J.SUSPENDED and timed:
            return after._replace(job=job._replace(state=J.READY))
        return after

    # ── one run ──

    def _run(self, state: StepWorld, n: int, run: Run) -> Iterator[Step]:
        who = f"run {run.token}"
        if state.faults and "kill" in self.kinds:
            lost = state if run.token != state.job.token else self._excused(state, run)
            dead = self._without(lost, n)._replace(faults=state.faults - 1)
            yield Step(StepAct(who, "is killed"), dead, False)
        called = [b for b, branch in enumerate(run.branches) if branch.phase is Phase.CALLED]
        for b in called:
            yield from self._command(state, n, run, self._store(state, n, run, b), who)
        if run.end is not End.NONE:
            if not called or not self.waits_for_functions():
                yield from self._command(state, n, run, self._ends(state, n, run), who)
            return
        for b, branch in enumerate(run.branches):
            if branch.phase is Phase.NEXT:
                yield from self._operation(state, n, run, b, who)
        phases = {branch.phase for branch in run.branches}
        if phases <= {Phase.WAITS, Phase.DONE}:
            end = End.SUSPENDS if Phase.WAITS in phases else End.COMPLETES
            yield Step(StepAct(who, "comes to its end"), self._with(state, n, run._replace(end=end)))

    def _operation(self, state: StepWorld, n: int, run: Run, b: int, who: str) -> Iterator[Step]:
        operations = self.operations(run)[b]
        at = run.branches[b].at
        if at == len(operations):
            yield Step(StepAct(who, "ends branch", "ab"[b]), self._with(state, n, _moved(run, b, Phase.DONE)))
            return
        one = operations[at]
        if one.after is not None and one.after not in {(label, a.value) for label, a in state.answers}:
            yield Step(StepAct(who, "passes", one.label), self._with(state, n, _moved(run, b, Phase.NEXT, 1)))
            return
        name = self.name_of(run, b, one)
        known = dict(run.known)
        stored = known.get(f"{name}!failed") or known.get(name)
        if stored is not None:
            if one.kind == "step" and self.asks_else(stored, one):
                after = self._with(state, n, run._replace(end=End.PARKS))
                yield Step(StepAct(who, "asks for something else", one.label), after)
                return
            yield Step(
                StepAct(who, "remembers", one.label), self._answered(state, n, run, b, one, stored, name)
            )
        elif one.kind == "step":
            yield Step(StepAct(who, "calls", one.label), self._called(state, n, run, b, one))
        else:
            yield from self._command(state, n, run, self._waits(state, n, run, b, one, name), who)

    def _called(self, state: StepWorld, n: int, run: Run, b: int, one: Operation) -> StepWorld:
        calls = dict(state.calls)
        calls[one.label] = calls.get(one.label, 0) + 1
        after = self._with(state, n, _moved(run, b, Phase.CALLED))
        if run.token != state.job.token:  # it does not know yet that it has lost its lease
            after = self._excused(after, after.runs[n], only=b)
        return after._replace(calls=tuple(sorted(calls.items())))

    def _answered(
        self, state: StepWorld, n: int, run: Run, b: int, one: Operation, answer: Answer, name: str
    ) -> StepWorld:
        """The code goes on with this answer."""
        seen = answer if one.kind == "step" else answer._replace(label=one.label)
        answers, wrong = dict(state.answers), state.wrong
        raises = answer.value == "failed" and not one.caught  # the code does not go on with it
        expected = seen if raises else answers.setdefault(one.label, seen)
        if expected != seen or seen.label != one.label or (one.kind == "step" and seen.head != one.head):
            wrong = one.label
        run = _moved(run, b, Phase.NEXT, 1)
        if raises:
            run = run._replace(end=End.FAILS_WITH, failed=name)
        after = state._replace(answers=tuple(sorted(answers.items())), wrong=wrong)
        return self._with(after, n, run)

    # ── commands ──

    def _command(
        self, state: StepWorld, n: int, run: Run, done: tuple[str, StepWorld, StepWorld], who: str
    ) -> Iterator[Step]:
        """A command: what it does, the world after its reply, and the world if the reply is lost."""
        what, after, lost = done
        yield Step(StepAct(who, what), after)
        if state.faults and "lose" in self.kinds and run.token == state.job.token and lost is not None:
            yield Step(
                StepAct(who, what, "and its reply is lost"), lost._replace(faults=state.faults - 1), False
            )

    def _store(self, state: StepWorld, n: int, run: Run, b: int) -> tuple[str, StepWorld, StepWorld]:
        """record_steps: what came of a function."""
        one = self.operations(run)[b][run.branches[b].at]
        name = self.name_of(run, b, one)
        fails = one.fails and one.label not in state.settled
        answer = Answer(one.head, one.label, "failed" if fails else "done")
        if fails and not self.stores_failures():
            raised = self._answered(state, n, run, b, one, answer, name)
            settled = raised._replace(settled=state.settled | {one.label})
            return f"raises {one.label}", settled, settled
        key = f"{name}!failed" if fails else name
        if not self.holds(state, run):
            return f"may not store {key}", self._without(state, n), state
        kept = dict(state.job.steps).get(key)
        answer = kept or answer  # the first value stays
        job = state.job._replace(steps=put_step(state.job.steps, key, answer))
        stored = state._replace(job=job, settled=state.settled | ({one.label} if fails else set()))
        known = run._replace(known=put_step(run.known, key, answer))
        after = self._answered(stored, n, known, b, one, answer, name)
        if run.end is not End.NONE:  # the attempt has ended: nobody is told
            after = self._with(stored, n, _moved(known, b, Phase.DONE))
        lost = self._with(stored, n, _moved(run, b, Phase.DONE)._replace(end=run.end or End.FAILS))
        return f"stores {key}", after, lost

    def _waits(
        self, state: StepWorld, n: int, run: Run, b: int, one: Operation, name: str
    ) -> tuple[str, StepWorld, StepWorld]:
        """await_signals; or record_steps, if the timeout is over."""
        if not self.holds(state, run):
            return f"may not wait for {name}", self._without(state, n), state
        job, stored = state.job, dict(state.job.steps).get(name)
        signal = state.signal
        if one.timeout and state.late and (stored is None or not self.signal_stays()):
            stored = Answer("signal", "", "timeout")
        elif stored is None and signal == "sent":
            stored, signal = Answer("signal", "", "signal"), "taken"
        steps = put_step(job.steps, name, stored)
        after = state._replace(job=job._replace(steps=steps), signal=signal)
        known = run._replace(known=put_step(run.known, name, stored))
        lost = self._with(after, n, _moved(run, b, Phase.DONE)._replace(end=End.FAILS))
        if stored is not None:
            return (
                f"has {stored.value} for {name}",
                self._answered(after, n, known, b, one, stored, name),
                lost,
            )
        return f"waits for {name}", self._with(after, n, _moved(known, b, Phase.WAITS)), lost

    def _ends(self, state: StepWorld, n: int, run: Run) -> tuple[str, StepWorld, StepWorld]:
        """forget_steps, and then settle."""
        names = () if run.tidy else self.to_forget(run)
        if not self.holds(state, run):
            return "may not end", self._without(state, n), state
        if names:
            steps = tuple(one for one in state.job.steps if one[0] not in names or _has_signal(one, names))
            after = state._replace(job=state.job._replace(steps=steps))
            known = self._with(after, n, run._replace(tidy=True, known=steps))
            failed = run._replace(end=End.FAILS, tidy=True)
            return f"forgets {', '.join(names)}", known, self._with(after, n, failed)
        job = state.job
        match run.end:
            case End.SUSPENDS:
                ready = job.woken and self.looks_for_signals()
                timed = state.late and any(one.timeout for branch in self.operations(run) for one in branch)
                move = J.READY if ready or timed else J.SUSPENDED
            case End.COMPLETES:
                move = J.COMPLETED
            case End.PARKS:
                move = J.PARKED
            case _:
                move = J.READY
        after = self._without(state, n)._replace(job=job._replace(state=move, woken=False))
        if move is J.SUSPENDED and run.release + 1 == len(self.releases):
            after = after._replace(withdrawn=True)
        return f"ends: {move.name.lower()}", after, after

    # ── rules ──

    def name_of(self, run: Run, b: int, one: Operation) -> str:
        """The name under which an operation is stored: nothing that a run computes."""
        return one.name

    def asks_else(self, stored: Answer, one: Operation) -> bool:
        return stored.head != one.head

    def stores_failures(self) -> bool:
        return True

    def waits_for_functions(self) -> bool:
        """Whether an attempt ends only after the functions that run in its other branches."""
        return True

    def signal_stays(self) -> bool:
        """Whether the record of a timeout is answered with the signal that has come first."""
        return True

    def holds(self, state: StepWorld, run: Run) -> bool:
        """Whether the lease is still that of this run: checked in the command itself."""
        return run.token == state.job.token and state.job.state is J.RUNNING

    def to_forget(self, run: Run) -> tuple[str, ...]:
        """What this run removes at its end: the failure that ends it, or waits that it did not reach."""
        if run.end is End.FAILS_WITH:
            return (f"{run.failed}!failed",)
        if run.end is not End.SUSPENDS:
            return ()
        waits = {
            self.name_of(run, b, self.operations(run)[b][branch.at])
            for b, branch in enumerate(run.branches)
            if branch.phase is Phase.WAITS
        }
        return tuple(name for name, answer in run.known if answer is None and name not in waits)

    def looks_for_signals(self) -> bool:
        """Whether settle sees that a signal has come since the wait was noted."""
        return True

    # ── changing a world ──

    def _with(self, state: StepWorld, n: int, run: Run) -> StepWorld:
        return state._replace(runs=(*state.runs[:n], run, *state.runs[n + 1 :]))

    def _without(self, state: StepWorld, n: int) -> StepWorld:
        return state._replace(runs=(*state.runs[:n], *state.runs[n + 1 :]))


def put_step(
    steps: tuple[tuple[str, Answer | None], ...], name: str, answer: Answer | None
) -> tuple[tuple[str, Answer | None], ...]:
    return tuple(sorted({**dict(steps), name: answer}.items(), key=lambda one: one[0]))


def _moved(run: Run, b: int, phase: Phase, by: int = 0) -> Run:
    branch = Branch(run.branches[b].at + by, phase)
    return run._replace(branches=(*run.branches[:b], branch, *run.branches[b + 1 :]))


def _has_signal(step: tuple[str, Any], names: tuple[str, ...]) -> bool:
    """Whether a wait that is to be withdrawn has its signal meanwhile: it stays."""
    return step[1] is not None and not step[0].endswith("!failed")
