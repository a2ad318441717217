"""What a flow has stored: its steps, and the checkpoint of its job.

How a durable step is stored and found again:

1. It is named: by its kind, name and key, the scope around it and the number of its use there
   (`core/step_names.py`); `scopes.py::Scopes.use` counts the uses.
2. It is looked up among the stored steps, which were read before the first operation (`StepMemory.read`, the
   verb `steps`). If it is there, `step_run.py::StepRun.operate` compares what the code asks for with the
   request line that was stored, and the stored value is the answer. A difference parks the job.
3. Else it is run: `step_plans.py`.
4. Its value is recorded (`StepMemory.record`, the verb `record_steps`) under the token of the lease: an
   attempt that has lost its lease stores nothing, and what is stored under a name stays.
5. The next attempt reads it.

What reads or changes the store is a plan: a generator that yields what is to be done, and is sent its result.
So the same code serves event loops and threads; `durable_steps.py` drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.app.attempt import Attempt, StepAccess
from penstock.app.deciding import STEP_FAILED, can_be_undone
from penstock.core.errors import AttemptLost, FlowError
from penstock.core.step_names import UNENCODABLE, VERSION, no_cursor, parsed, split_value, with_head
from penstock.stores.contract import (
    LARGEST_MEMORY,
    MOST_STEPS,
    STEP_UNDO,
    HeartbeatRequest,
    LeaseStatus,
    RecordedStep,
    RecordStatus,
    SignalWait,
    StepRecord,
    StepRemoval,
    StoredStep,
)
from penstock.stores.job_log import is_log
from penstock.workflows.scopes import Scope, Use

T = TypeVar("T")

#: Maximum wait (ms) until a flow checks again, so that a lost notification cannot stop it for ever.
LONGEST_WAIT = 86_400_000
#: A wait for a signal, or for the jobs of a gather, is repeated after these times (ms), too: a failover, or a
#: server that restarts without its last writes, may have lost it.
_EARLY_LOOKS = (60_000, 600_000)
#: VERSION in flows that an older release began.
OLDER_VERSION = "version!"

#: An entry of the checkpoint: the cursor of a loop, and (in flows that an older release began) how often each
#: name was used up to there.
Mark = tuple[Any, dict[str, int]]
_NO_CURSOR: Mark = (None, {})
_marks_of = msgspec.json.Decoder(dict[str, Mark]).decode


class UserCall(NamedTuple):
    """Call a user's function; its result is sent back, awaited if it is awaitable."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    what: str = "the function of a step"
    run_in: str | None = None


class VerbCall(NamedTuple):
    """Call a verb of the store."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed


class Pause(NamedTuple):
    """Sleep while keeping the slot. None: for a moment, until the plan checks again."""

    seconds: float | None


StepRequest = UserCall | VerbCall | Pause
StepPlan = Generator[StepRequest, Any, T]


class StepMemory:
    """The stored steps of a flow, as the job's current attempt knows them."""

    def __init__(self, attempt: Attempt, access: StepAccess) -> None:
        assert attempt.owner is not None
        self._owner = attempt.owner
        self._job = attempt.job
        self._lease = access.lease
        self._known: dict[str, StoredStep] | None = None
        #: Operations of which earlier runs have stored something.
        self.touched: set[str] = set()
        #: Whether an older release began the flow: its names are numbered as they were.
        self.older = False
        self.checkpoint = attempt.job.checkpoint

    def now(self) -> int:
        """The store's clock (ms)."""
        return self._owner.store_now()

    @property
    def is_read(self) -> bool:
        return self._known is not None

    def read(self) -> StepPlan[None]:
        """Read the steps. A run that only undoes notes the reason before it does anything else."""
        steps: list[StoredStep] = yield VerbCall("steps", (self._job.ref,))
        self._known = {step.name: step for step in steps if not is_log(step)}
        self.touched = {_whole(name) for name in self._known}
        names = {*self._known, *self.marks()} - {STEP_FAILED, STEP_UNDO}
        self.older = any(not name.startswith("!") for name in names)
        why = self._owner.undoes
        if why is not None and self.stored(STEP_FAILED) is None:
            yield from self.record(STEP_FAILED, why.encode())

    def stored(self, key: str) -> StoredStep | None:
        """The stored step with this key, if it has a value."""
        step = (self._known or {}).get(key)
        return None if step is None or step.value is None else step

    def operations(self) -> list[str]:
        """The operations of which something is stored."""
        return [_whole(name) for name in self._names() if _is_operation(name)]

    def steps(self) -> list[str]:
        """The stored steps that have ended well."""
        return [name for name in self._names() if _is_step(name)]

    def open_waits(self) -> list[str]:
        """The waits for signals that have not ended."""
        return [name for name, step in list((self._known or {}).items()) if step.value is None]

    def _names(self) -> list[str]:
        return list(self._known or ())  # at once: branches in other threads store steps meanwhile

    def order(self) -> dict[str, int]:
        """The places of the stored steps in the order in which they were stored."""
        return {name: n for n, name in enumerate(self._names())}

    def order_in_store(self) -> StepPlan[dict[str, int]]:
        """The same as the store has it: branches may have got its answers in another order."""
        steps: list[StoredStep] = yield VerbCall("steps", (self._job.ref,))
        return self.order() | {step.name: n for n, step in enumerate(steps)}

    def stored_since(self, step: StoredStep) -> bool:
        """Whether an operation was stored after this one."""
        order = self.order()
        return any(
            one.at > step.at or (one.at == step.at and order[name] > order[step.name])
            for name, one in list((self._known or {}).items())
            if _is_operation(name)
        )

    def has_steps_in(self, loop: Use) -> bool:
        """Whether steps of items of this loop are stored."""
        prefix = f"!step/{loop.scope.path}{loop.part}["
        return any(name.startswith(prefix) for name in self._names())

    def count(self, prefix: str) -> int:
        """The number of stored steps `prefix1`, `prefix2` …, up to the first that is missing."""
        n = 0
        while self.stored(f"{prefix}{n + 1}") is not None:
            n += 1
        return n

    @property
    def undoing(self) -> bool:
        """Whether this run only undoes the stored steps."""
        return self.stored(STEP_FAILED) is not None

    def answer(self, step: StoredStep) -> bytes:
        """The value of a stored operation, without its request line."""
        value = step.value or b""
        return value if self.older else split_value(value)[1]

    def record_answer(self, key: str, asked: str, value: bytes) -> StepPlan[StoredStep]:
        """Store the answer of an operation, with its request line in front."""
        return (yield from self.record(key, value if self.older else with_head(asked, value)))

    def record(self, key: str, value: bytes) -> StepPlan[StoredStep]:
        """Store a step, or return the one that is stored."""
        lease = self._job.lease
        (answer,) = yield VerbCall("record_steps", ([StepRecord(lease, key, value, self._lease)],))
        return self._stored_as(key, answer, value)

    def forget(self, names: list[str], *, waiting: bool = False) -> StepPlan[None]:
        """Remove steps; with `waiting`, only those that still wait for a signal."""
        if not names:
            return
        lease, by = self._job.lease, self._lease
        removals = [StepRemoval(lease, name, by, waiting) for name in names]
        answers = yield VerbCall("forget_steps", (removals,))
        assert self._known is not None
        for name, answer in zip(names, answers, strict=True):
            if answer.status is RecordStatus.LOST:
                raise AttemptLost(f"the lease of job {self._job.id} is lost; {name!r} was not forgotten")
            if answer.status is RecordStatus.STORED:
                self._known.pop(name, None)
            else:
                self._known[name] = StoredStep(name, self.now(), answer.value, answer.signal)

    def marks(self) -> dict[str, Mark]:
        """The checkpoint of the job: its cursors by the keys of their loops, and STEP_UNDO."""
        return {} if self.checkpoint is None else _marks_of(self.checkpoint)

    def mark(self, key: str, mark: Mark = _NO_CURSOR) -> StepPlan[None]:
        """Store an entry of the checkpoint, and drop the cursors of loops inside items that are done."""
        kept = {name: one for name, one in self.marks().items() if not _is_inside(name, key)}
        try:
            self.checkpoint = msgspec.json.encode({**kept, key: mark})
        except UNENCODABLE as error:
            raise no_cursor(key, mark[0], error) from None
        lease = self._job.lease
        request = HeartbeatRequest(lease, self._lease, checkpoint=self.checkpoint, lasting=True)
        (status,) = yield VerbCall("extend", ([request],))
        if status is LeaseStatus.LOST:
            raise AttemptLost(f"the lease of job {self._job.id} is lost; {key!r} was not stored")

    def note_undo(self) -> StepPlan[None]:
        """Note that the flow has a step that can be undone, before that runs: a crash may end the job."""
        if self.stored(STEP_UNDO) is None:
            yield from self.record(STEP_UNDO, b"null")
        if not can_be_undone(self.checkpoint):
            yield from self.mark(STEP_UNDO)

    def _stored_as(self, key: str, answer: RecordedStep, value: bytes) -> StoredStep:
        if answer.status is RecordStatus.LOST:
            raise AttemptLost(f"the lease of job {self._job.id} is lost; the step {key!r} was not stored")
        if answer.status is RecordStatus.FULL:
            raise FlowError(
                f"job {self._job.id} remembers too much for the step {key!r} of {len(value):,} bytes: "
                f"the limit is {LARGEST_MEMORY:,} bytes in {MOST_STEPS:,} steps. Keep large data elsewhere "
                "and return its key"
            )
        exists = answer.status is RecordStatus.EXISTS
        now = self.now()
        found = StoredStep(key, now, answer.value, answer.signal) if exists else StoredStep(key, now, value)
        assert self._known is not None
        self._known[key] = found
        return found

    def await_signal(self, key: str, name: str, signal_key: str) -> StepPlan[StoredStep | None]:
        """Store a wait for a signal. Returns the step if the signal is there already; None if it is not."""
        wait = SignalWait(self._job.lease, key, name, signal_key, self._lease)
        (answer,) = yield VerbCall("await_signals", ([wait],))
        if answer.status is not RecordStatus.STORED:
            return self._stored_as(key, answer, b"")
        assert self._known is not None
        self._known.setdefault(key, StoredStep(key, self.now(), None, (name, signal_key)))
        return None

    def next_look(self, key: str) -> int:
        """Milliseconds until the wait that this step has begun is repeated."""
        begun = (self._known or {}).get(key)
        waited = 0 if begun is None or not begun.at else self.now() - begun.at
        return next((look - waited for look in _EARLY_LOOKS if waited < look), LONGEST_WAIT)

    def waits_in(self, scope: Scope) -> list[str]:
        """Waits for signals in this scope that have not ended."""
        prefix = f"!wait/{scope.path}"
        return [name for name in self.open_waits() if name.startswith(prefix)]


def _is_operation(name: str) -> bool:
    """Whether a stored name is that of an operation, or of one of its helper records."""
    return name not in (STEP_FAILED, STEP_UNDO, VERSION, OLDER_VERSION)


def _whole(name: str) -> str:
    """The operation to which a stored name belongs, which may be that of a helper record."""
    end = name.find("!", 1)
    return name if end < 0 else name[:end]


def _is_step(name: str) -> bool:
    """Whether a stored name is that of a step that has ended well."""
    found = parsed(name)
    return "!" not in name if found is None else found.kind == "step" and not found.suffix


def _is_inside(name: str, loop: str) -> bool:
    """Whether this is the name of a loop in an item of that loop."""
    inner, outer = parsed(name), parsed(loop)
    if inner is None or outer is None or inner.kind != "loop" or len(inner.scope) <= len(outer.scope):
        return False
    within_item = inner.scope[len(outer.scope)]
    return inner.scope[: len(outer.scope)] == outer.scope and within_item.startswith(
        f"{outer._replace(scope=()).shown}["
    )
