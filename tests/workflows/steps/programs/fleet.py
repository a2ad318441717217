"""Runs many programs at a time by one worker, on one store, each with a fault of its own.

A *kill* is that of one run: nothing that the run does from then on is stored or counts, its lease is lost to
nobody, and runs out by the manual clock. So thousands of kills need neither processes nor time.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock import App, Worker, current_job
from penstock.app.deciding import STEP_FAILED, Loss, settle_reclaimed
from penstock.config import Config, load
from penstock.core.clock import ManualClock
from penstock.core.ids import mint_token
from penstock.core.job import Job, Ref, State
from penstock.core.step_names import parsed
from penstock.errors import EnqueueUnknown, StoreUnavailable
from penstock.retry import Fixed
from penstock.stores.contract import (
    HeartbeatRequest,
    LeaseStatus,
    RecordedStep,
    RecordStatus,
    Settled,
    Settlement,
    Signal,
    StepRecord,
    Store,
    requests,
)
from penstock.workflows import current_flow, current_sync_flow
from tests.workflows.steps.programs.language import Program
from tests.workflows.steps.programs.source import compiled, text_of_program
from tests.workflows.steps.programs.world import Killed, Run, World, running

__all__ = ["Fault", "Fleet", "Stuck", "Trial"]

QUEUE = "programs"
#: Jumps of the clock (ms): each sleep of an hour is over behind one.
_JUMP = 65 * 60_000
_ROUNDS = 600
#: More runs than this of one program: it does not end.
_MOST_RUNS = 300
#: More than there are trials at a time, so that none waits for another.
_SLOTS = 300
#: How long (s) a round may take.
_PATIENCE = 60.0
#: How often a signal is sent that races with a timeout, of the jumps of the clock.
_RACE = 0.25


class Stuck(AssertionError):
    """A program does not end."""


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th call of the store, from 1: kill-before, kill-after, lost (the reply)."""

    kind: str
    call: int

    def __str__(self) -> str:
        return f"{self.kind} at call {self.call}"


@dataclass
class Trial:
    """One run of a program to its end. `gate`: the place at which the release `later` takes over."""

    id: str
    program: Program
    faults: tuple[Fault, ...] = ()
    later: Program | None = None
    gate: str = ""
    seed: int = 0
    calls: list[str] = field(default_factory=list)  # verbs that its runs have called
    struck: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)  # places of steps, in the order in which they were stored
    job: Job | None = None
    stuck: bool = False  # it did not end
    struck_last: bool = False  # a fault struck the run that undoes the steps, after which there is no other

    def __post_init__(self) -> None:
        self.sent: set[str] = set()
        self.dead_tokens: set[str] = set()
        self.token = ""
        self.abandoned = False  # killed, and its lease still runs
        self.suspended_in = 0  # the last run that was suspended
        self.switched_at = 0  # how many runs there were when the later release took over
        self.remembers = False  # something is stored
        self.remembered = False  # something was, when the later release took over
        self.world: World

    @property
    def ref(self) -> Ref:
        return Ref(QUEUE, self.id)

    @property
    def has_waited_anew(self) -> bool:
        """Whether the later release was suspended: what it does not wait for is withdrawn."""
        return self.later is None and self.suspended_in > self.switched_at

    def kill(self) -> None:
        assert self.world.run is not None
        self.dead_tokens.add(self.token)
        self.world.lose(self.world.run)

    def strike(self, number: int, *kinds: str) -> Fault | None:
        """The fault of one of these kinds that happens at the call of this number; a kill takes effect."""
        fault = next((one for one in self.faults if one.call == number and one.kind in kinds), None)
        if fault is not None:
            self.struck.append(str(fault))
            self.struck_last = self.struck_last or self.world.failing
            if fault.kind.startswith("kill"):
                self.kill()
        return fault


class _RealWorld(World):
    def __init__(self, fleet: Fleet, trial: Trial) -> None:
        super().__init__(trial.id, seed=trial.seed)
        self._fleet = fleet

    def signal(self, name: str, place: str, when: str) -> str:
        key = super().signal(name, place, when)
        if when == "early":
            self._fleet.send_now(self._fleet.trials[self.job], key)
        return key

    def jobs(self, place: str, size: int, *, given: bool = False, fails: bool = False) -> list[Any]:
        child = self._fleet.child
        calls = []
        for n in range(size):
            id = f"{self.job}.{place}.{n}".replace("/", ".")
            task = child.using(id=id) if given else child
            calls.append(task.job(self.job, f"{place}.{n}", fails and n == 0))
        return calls


class Fleet:
    """An app on a store, its worker, and the trials that run there."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.raw = store
        self.clock = clock
        self.trials: dict[str, Trial] = {}
        self.app = App("memory://")
        self.app.use_store(cast(Store, _Struck(store, self)))
        self._tasks()

    def _tasks(self) -> None:
        options: dict[str, Any] = {"queue": QUEUE, "retry": Fixed(3_600_000), "retention": "30d"}

        @self.app.task(name="program", **options)
        async def program(id: str) -> str:
            trial = self.trials[id]
            self._begin(trial, asyncio.get_running_loop())
            await compiled(trial.program)(current_flow(version=trial.program.version), trial.world)
            return "done"

        @self.app.task(name="thread-program", **options)
        def thread_program(id: str) -> str:
            trial = self.trials[id]
            self._begin(trial, None)
            compiled(trial.program)(current_sync_flow(version=trial.program.version), trial.world)
            return "done"

        @self.app.task(name="child", queue=QUEUE, max_attempts=1)
        async def child(id: str, place: str, fails: bool) -> str:
            world = self.trials[id].world
            world.calls[place] += 1
            if fails:
                raise ValueError("planned")
            return f"{place}!"

        self.child: Any = child
        self._program, self._thread_program = program, thread_program

    def _begin(self, trial: Trial, loop: asyncio.AbstractEventLoop | None) -> None:
        run = Run(trial.world, trial.world.runs + 1)
        run.loop = loop
        if trial.world.runs > _MOST_RUNS:
            raise SystemExit("a program that does not end")
        trial.token, trial.abandoned = current_job().job.lease.token, False
        trial.world.begin(run)

    def send_now(self, trial: Trial, key: str) -> None:
        """Send the signal with this key, unless it was sent."""
        if key not in trial.sent:
            trial.sent.add(key)
            self.raw.sync.send_signals([_signal(trial, key)])

    # ── playing ──

    async def play(self, trials: Sequence[Trial]) -> None:
        """Play all trials to their ends."""
        for trial in trials:
            trial.world = _RealWorld(self, trial)
            self.trials[trial.id] = trial
        async with self._worker():
            for trial in trials:
                task = self._thread_program if trial.program.sync else self._program
                await task.using(id=trial.id, max_attempts=trial.program.most).aenqueue(trial.id)
            open_ = list(trials)
            for _ in range(_ROUNDS):
                await self._idle(open_)
                open_ = await self._not_ended(open_)
                if not open_:
                    return
                self._switch(open_)
                if await self._send(open_, ("late",)):
                    continue
                if not await self._pass_time(open_):
                    break
        for trial in open_:
            trial.stuck = True

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[None]:
        worker = Worker(self.app, [QUEUE], concurrency=_SLOTS, config=_config())
        run = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await run

    async def _idle(self, trials: Sequence[Trial]) -> None:
        """Until nothing runs, and nothing could."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            counts = [info.counts for info in await self.raw.queues() if info.name == QUEUE]
            busy = sum(one.get(State.RUNNING, 0) for one in counts) - sum(one.abandoned for one in trials)
            ready = sum(one.get(State.AVAILABLE, 0) for one in counts)
            if not ready and busy <= 0 and not await self.raw.advance_flows():
                return
            if time.monotonic() > give_up:
                raise Stuck(f"{busy} runs do not end: {await self._running(trials)}")
            await asyncio.sleep(0.001)

    async def _running(self, trials: Sequence[Trial]) -> str:
        jobs = await self.raw.get([one.ref for one in trials])
        running = [
            told_by_calls(trial)
            for trial, job in zip(trials, jobs, strict=True)
            if job is not None and job.state in (State.RUNNING, State.AVAILABLE) and not trial.abandoned
        ]
        return "\n".join(running[:3])

    async def _not_ended(self, trials: Sequence[Trial]) -> list[Trial]:
        left = []
        for trial, job in zip(trials, await self.raw.get([one.ref for one in trials]), strict=True):
            trial.job = job
            if job is None or not (job.ended or job.state is State.PARKED):
                left.append(trial)
        return left

    def _switch(self, trials: Sequence[Trial]) -> None:
        """Let later releases take over at their gates."""
        for trial in trials:
            if trial.later is not None and trial.gate in trial.world.reached:
                trial.program, trial.later = trial.later, None
                trial.switched_at, trial.remembered = trial.world.runs, trial.remembers

    async def _send(self, trials: Sequence[Trial], kinds: Sequence[str], chance: float = 1.0) -> int:
        """Send signals of these kinds for which a program has come to wait, or of which it has given up."""
        signals = []
        for trial in trials:
            for key, when in list(trial.world.signals.items()):
                place = key.partition(":")[2]
                due = when in kinds or (when == "after" and place in trial.world.seen)
                if place == trial.gate and not trial.has_waited_anew:
                    continue
                if key not in trial.sent and due and trial.world.dice.random() < chance:
                    trial.sent.add(key)
                    signals.append(_signal(trial, key))
        if signals:
            await self.raw.send_signals(signals)
        return len(signals)

    async def _pass_time(self, trials: Sequence[Trial]) -> bool:
        """Move the clock to when something is due; False if nothing ever is."""
        due = await self.raw.promote([QUEUE], limit=10_000)
        if due.moved:
            return True
        wait = 0 if due.next is None else due.next - self.clock.now()
        if due.next is None and not any(one.abandoned for one in trials):
            jobs = await self.raw.get([one.ref for one in trials])
            return not all(job is not None and job.state is State.SUSPENDED for job in jobs)
        self.clock.advance(max(_JUMP, wait))
        await self._send(trials, ("race",), _RACE)
        if any(one.abandoned for one in trials):
            lease = _config().lease
            found = await self.raw.reclaim(
                [QUEUE], limit=10_000, lease=lease, worker="heir", token=mint_token()
            )
            back = [trial for trial in trials if trial.id in {job.id for job in found.jobs}]
            for trial in back:
                trial.abandoned = False
            await settle_reclaimed(self.raw, found, Loss("LeaseLost", "killed", keep_dead=1_000_000))
            for trial in back:
                if await self.raw.steps(trial.ref, names=[STEP_FAILED]):
                    trial.world.failing = True
        await self.raw.promote([QUEUE], limit=10_000)
        return True


def _signal(trial: Trial, key: str) -> Signal:
    data = msgspec.json.encode(f"data of {key.partition(':')[2]}")
    return Signal(trial.world.names[key], key, data)


def _config() -> Config:
    return _CONFIG


_CONFIG = load(
    {"lease": "15s", "heartbeat": "5s", "drain_timeout": "5s", "reclaim_every": "10m", "prune_every": "1h"},
    env={},
    file=Path("/dev/null"),
).config


class _Struck:
    """The store as runs see it: with faults at the calls of each trial."""

    def __init__(self, store: Any, fleet: Fleet) -> None:
        self._store = store
        self._fleet = fleet

    @property
    def sync(self) -> Any:
        return _Struck(self._store.sync, self._fleet)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in requests():
            return found
        asynchronous = inspect.iscoroutinefunction(found)
        if name in ("settle", "extend") and asynchronous:
            return getattr(self, f"_{name}")
        return self._guarded(name, found) if asynchronous else self._guarded_sync(name, found)

    async def _settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Those of killed runs change nothing."""
        answers: list[Settled | None] = [None] * len(settlements)
        lost = False
        for n, one in enumerate(settlements):
            trial = self._trial_of(one.lease)
            if trial is None or not (one.lease.token == trial.token or one.lease.token in trial.dead_tokens):
                continue  # its function has not begun
            if one.lease.token not in trial.dead_tokens:
                trial.calls.append(f"settle {one.transition.state.value}")
                number = len(trial.calls)
                if trial.strike(number, "kill-before") is None:
                    lost = lost or trial.strike(number, "lost") is not None
            if one.lease.token in trial.dead_tokens:
                trial.abandoned = True
                answers[n] = Settled.STALE
        rest = [one for one, answer in zip(settlements, answers, strict=True) if answer is None]
        given = iter(await self._store.settle(rest) if rest else [])
        found = [answer if answer is not None else next(given) for answer in answers]
        for one, answer in zip(settlements, found, strict=True):
            trial = self._trial_of(one.lease)
            if trial is not None and answer is Settled.APPLIED and one.lease.token == trial.token:
                for place in list(trial.world.open):
                    if one.transition.state is State.RETRYABLE:  # with what has cut these calls off
                        trial.world.repeated[place] += trial.world.open[place]
                    trial.world.settle(place)
                if one.transition.state is State.SUSPENDED:
                    trial.suspended_in = trial.world.runs
        if lost and rest:  # what the worker does, without its pause
            await self._store.settle(rest)
        return found

    async def _extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        """The leases of killed runs are not extended; the run ends by its next call, not by this answer."""
        if len(requests) == 1 and requests[0].checkpoint is not None:
            call = self._guarded("extend", self._store.extend)
            answer: list[LeaseStatus] = await call(requests)
            return answer
        dead = [self._is_dead(one.lease) for one in requests]
        rest = [one for one, lost in zip(requests, dead, strict=True) if not lost]
        given = iter(await self._store.extend(rest) if rest else [])
        return [LeaseStatus.HELD if lost else next(given) for lost in dead]

    def _is_dead(self, lease: Any) -> bool:
        trial = self._trial_of(lease)
        return trial is not None and lease.token in trial.dead_tokens

    def _trial_of(self, lease: Any) -> Trial | None:
        return self._fleet.trials.get(lease.id)

    def _guarded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **options: Any) -> Any:
            trial, number = self._before(name, args)
            answer = await call(*args, **options)
            if trial is not None:
                self._after(trial, number, name, args, answer)
            return answer

        return guarded

    def _guarded_sync(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            trial, number = self._before(name, args)
            answer = call(*args, **options)
            if trial is not None:
                self._after(trial, number, name, args, answer)
            return answer

        return guarded

    def _before(self, name: str, args: Sequence[Any]) -> tuple[Trial | None, int]:
        """The trial whose run makes this call, and the number of the call.

        Raises Killed if the run is dead, or dies here.
        """
        lease = getattr(args[0][0], "lease", None) if args and isinstance(args[0], list) and args[0] else None
        run = running.get(None)
        if lease is not None:
            trial = self._trial_of(lease)
            dead = trial is not None and lease.token in trial.dead_tokens
        else:
            trial = None if run is None else self._fleet.trials[run.world.job]
            dead = run is not None and run.dead
        if trial is None:
            return None, 0
        if dead:
            raise Killed("killed")
        trial.calls.append(_shown(name, args))
        number = len(trial.calls)
        if trial.strike(number, "kill-before") is not None:
            raise Killed("killed")
        return trial, number

    def _after(self, trial: Trial, number: int, name: str, args: Sequence[Any], answer: Any) -> None:
        trial.remembers = trial.remembers or name in ("record_steps", "await_signals")
        if name == "record_steps":
            for record, recorded in zip(args[0], answer, strict=True):
                _note(trial, record, recorded)
        if name == "forget_steps":
            for removal in args[0]:
                _note_forgotten(trial.world, removal.name)
        if _is_killed(trial) or trial.strike(number, "kill-after") is not None:
            raise Killed("killed")
        if trial.strike(number, "lost") is not None:
            if name == "enqueue":
                raise EnqueueUnknown([job.id for job in args[0]], "a test loses the reply")
            raise StoreUnavailable(f"a test loses the reply of {name}")


def _is_killed(trial: Trial) -> bool:
    """Whether the run that makes this call was killed meanwhile, by another call."""
    run = running.get(None)
    return trial.token in trial.dead_tokens if run is None else run.dead


def _note(trial: Trial, record: StepRecord, recorded: RecordedStep) -> None:
    """Note which outcome the store has now."""
    if recorded.status not in (RecordStatus.STORED, RecordStatus.EXISTS):
        return
    world, value = trial.world, record.value.rpartition(b"\n")[2]
    place = world.current.get()
    if value[:1] == b'"':
        text = msgspec.json.decode(value)
        if text in world.calls:
            place = text
            if text not in trial.stored:
                trial.stored.append(text)
    world.settle(place)
    world.failing = world.failing or record.name == STEP_FAILED


def _note_forgotten(world: World, name: str) -> None:
    """Note that a step is called again, if the code has not gone on with its failure, or with its cut."""
    found = parsed(name)
    if found is None or found.key is None:
        return
    hanging = found.name[-2:] in ("-a", "-b")
    place = f"{found.key}/after" if found.name.endswith("-after") else found.key
    if place in world.seen:
        return
    if hanging:
        place += found.name[-1]
    if found.suffix == "cut" or (found.suffix == "failed" and hanging):
        world.repeated[place] += 1


def told_by_calls(trial: Trial) -> str:
    """The program of a trial, and its last calls of the store."""
    faults = ", ".join(map(str, trial.struck))
    return f"{trial.id} {trial.calls[-12:]} {faults}\n{text_of_program(trial.program)}"


def _shown(name: str, args: Sequence[Any]) -> str:
    first = args[0][0] if args and isinstance(args[0], list) and args[0] else None
    what = getattr(first, "name", None) or getattr(first, "step", None)
    return f"{name} {what}" if isinstance(what, str) else name
