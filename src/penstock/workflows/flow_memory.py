"""What a running flow knows: its stored steps, the names of its next ones, and whether it may go on.

The methods are generators: they yield what is to be done, and are sent its outcome. So the same code serves
event loops and threads; `durable_steps.py` drives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.app.attempt import Attempt, StepAccess
from penstock.app.undoing import FAILED, UNDO, can_be_undone
from penstock.core.errors import (
    AttemptLost,
    ConfigError,
    FlowError,
    FlowSuspended,
    FlowVersionMismatch,
)
from penstock.core.job import Ref
from penstock.stores.contract import (
    LARGEST_MEMORY,
    MOST_STEPS,
    HeartbeatRequest,
    LeaseStatus,
    RecordedStep,
    RecordStatus,
    SignalWait,
    StepRecord,
    StoredStep,
)

__all__ = [
    "LONGEST_WAIT",
    "FlowMemory",
    "Pause",
    "Request",
    "StepsFailed",
    "UserCall",
    "VerbCall",
    "checked_name",
    "within",
]

T = TypeVar("T")

#: A wait of at most this (ms) keeps the slot.
SHORT_WAIT = 500
#: A flow that waits longer looks again after this (ms), so that nothing lost can stop it for ever.
LONGEST_WAIT = 86_400_000
#: A wait for a signal, or for the jobs of a gather, is repeated at these times (ms) after its begin, too: a
#: server that restarts without its last moments, or a failover, may have lost it.
_EARLY_LOOKS = (60_000, 600_000)
#: So many turns of the event loop are for branches that have not begun yet, before the flow is suspended.
_TURNS = 5
_VERSION = "version!"
_RESERVED = "!#"

#: An entry of the checkpoint: the cursor of a loop, and how often each name was used up to there.
Mark = tuple[Any, dict[str, int]]
_NO_CURSOR: Mark = (None, {})
_marks_of = msgspec.json.Decoder(dict[str, Mark]).decode


class UserCall(NamedTuple):
    """Call a user's function; its result is sent back, awaited if it is awaitable."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    what: str = "the function of a step"


class VerbCall(NamedTuple):
    """Call a verb of the store."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed


class Pause(NamedTuple):
    """Sleep, keeping the slot; or (None) until no step of this flow runs."""

    seconds: float | None


Request = UserCall | VerbCall | Pause
Plan = Generator[Request, Any, T]


class StepsFailed(BaseException):
    """The flow is being undone: its function has reached what it did not reach before it failed."""


#: The flow whose step or undo runs here, and which of the two it is.
within: ContextVar[tuple[FlowMemory, str] | None] = ContextVar("penstock_within_step", default=None)
#: The loops around the code that runs here: each with its memory, and the names used in it.
_loops: ContextVar[tuple[tuple[FlowMemory, set[str]], ...]] = ContextVar("penstock_loops", default=())


class FlowMemory:
    """The memory of one attempt of a flow."""

    def __init__(self, attempt: Attempt, access: StepAccess, version: str | None) -> None:
        assert attempt.owner is not None
        self.attempt = attempt
        self.access = access
        self._owner = attempt.owner
        self._version = version
        self._known: dict[str, StoredStep] | None = None
        self._uses: Counter[str] = Counter()
        self.active: set[str] = set()  # names of steps that run now
        self.plans = 0  # operations of the flow that have begun and not ended
        self._waits: dict[object, int] = {}  # those of them that wait, each with its delay (ms)
        self.suspended: FlowSuspended | None = None
        self.refused: FlowVersionMismatch | None = None
        self.over = False  # the attempt has ended, or its function has
        self.checkpoint = attempt.job.checkpoint

    @property
    def ref(self) -> Ref:
        return self.attempt.job.ref

    def now(self) -> int:
        """The store's clock (ms)."""
        return self._owner.store_now()

    def use(self, name: str) -> str:
        """The key of this use of a name: the name itself, then with the number of the use."""
        self._uses[name] += 1
        n = self._uses[name]
        for loop, used in _loops.get():
            if loop is self:
                used.add(name)
        return name if n == 1 else f"{name}#{n}"

    def enter_loop(self, stored: dict[str, int]) -> set[str]:
        """Count what is used from here on as uses of a loop's items, behind the stored counts.

        Returns the names used in it. Other branches of the flow keep counts of their own.
        """
        for name, n in stored.items():
            self._uses[name] = max(self._uses[name], n)
        used = set(stored)
        _loops.set((*(one for one in _loops.get() if one[0] is self), (self, used)))
        return used

    def leave_loop(self, used: set[str]) -> None:
        """End what `enter_loop` began."""
        _loops.set(tuple(one for one in _loops.get() if one[1] is not used))

    def uses(self, names: set[str]) -> dict[str, int]:
        """How often each of these names was used."""
        return {name: self._uses[name] for name in names}

    def begin(self) -> Plan[None]:
        """Read the steps, before the first use. Raises what `check_use` raises."""
        self.check_use()
        yield from self.read()
        self.check()

    def read(self) -> Plan[None]:
        """Read the steps, once, and check the version of the flow."""
        if self._known is None:
            steps: list[StoredStep] = yield VerbCall("steps", (self.ref,))
            if self._known is None:  # another task of the flow may have read them meanwhile
                self._known = {step.name: step for step in steps}
                yield from self._check_version()

    @property
    def ending(self) -> FlowVersionMismatch | FlowSuspended | None:
        """What ends this attempt, whatever the function or middleware raises."""
        return self.refused or self.suspended

    def check(self) -> None:
        """Raise again what ends this attempt, if something does: the code may have swallowed it."""
        if self.ending is not None:
            raise self.ending
        if self.over:
            raise AttemptLost(f"this attempt of job {self.attempt.id} has ended: its flow does nothing more")

    def check_use(self) -> None:
        """Raise what `check` raises, and FlowError inside a step."""
        inside = within.get()
        if inside is not None and inside[0] is self:
            raise FlowError(f"a flow cannot be used inside {inside[1]}: call it in the task's function")
        self.check()

    def stored(self, key: str) -> StoredStep | None:
        """The stored step with this key, if it has a value."""
        step = (self._known or {}).get(key)
        return None if step is None or step.value is None else step

    def unreached(self) -> bool:
        """Whether steps are stored that the function has not used in this attempt."""
        names = (key.partition("#") for key in self._known or () if "!" not in key)
        return any(self._uses[name] < int(n or 1) for name, _, n in names)

    def count(self, prefix: str) -> int:
        """The number of stored steps `prefix1`, `prefix2` …, up to the first that is missing."""
        n = 0
        while self.stored(f"{prefix}{n + 1}") is not None:
            n += 1
        return n

    def reach(self) -> None:
        """Note that the function goes beyond what is stored; a flow that is being undone ends there."""
        if self.stored(FAILED) is not None:
            raise StepsFailed

    def record(self, key: str, value: bytes) -> Plan[StoredStep]:
        """Store a step, or return the one that is stored."""
        lease = self.attempt.job.lease
        (answer,) = yield VerbCall("record_steps", ([StepRecord(lease, key, value, self.access.lease)],))
        return self._settled(key, answer, value)

    def marks(self) -> dict[str, Mark]:
        """The checkpoint of the job: its cursors by the keys of their loops, and UNDO."""
        return {} if self.checkpoint is None else _marks_of(self.checkpoint)

    def mark(self, key: str, mark: Mark = _NO_CURSOR) -> Plan[None]:
        """Store an entry of the checkpoint."""
        self.checkpoint = msgspec.json.encode({**self.marks(), key: mark})
        lease = self.attempt.job.lease
        request = HeartbeatRequest(lease, self.access.lease, checkpoint=self.checkpoint, lasting=True)
        (status,) = yield VerbCall("extend", ([request],))
        if status is LeaseStatus.LOST:
            raise AttemptLost(f"the lease of job {self.attempt.id} is lost; {key!r} was not stored")

    def note_undo(self) -> Plan[None]:
        """Note that the flow has a step that can be undone, before it runs: a crash may end the job."""
        if not can_be_undone(self.checkpoint):
            yield from self.mark(UNDO)

    def wait(self, key: str, name: str, signal_key: str) -> Plan[StoredStep | None]:
        """Wait for a signal; None: it has not come."""
        wait = SignalWait(self.attempt.job.lease, key, name, signal_key, self.access.lease)
        (answer,) = yield VerbCall("await_signals", ([wait],))
        return None if answer.status is RecordStatus.STORED else self._settled(key, answer, b"")

    def next_look(self, key: str) -> int:
        """How long (ms) a wait that this step has begun lasts until it is repeated."""
        begun = (self._known or {}).get(key)
        waited = 0 if begun is None or not begun.at else self.now() - begun.at  # 0: in this attempt
        return next((look - waited for look in _EARLY_LOOKS if waited < look), LONGEST_WAIT)

    def wait_until(self, due: int) -> Plan[None]:
        """Wait until this instant: a moment in the slot, or suspended."""
        left = due - self.now()
        if left > SHORT_WAIT:
            yield from self.suspend(left)
        if left > 0:
            yield Pause(left / 1000)

    def suspend(self, delay: int) -> Plan[None]:
        """End this attempt until the flow is resumed. Raises FlowSuspended."""
        wait = object()
        self._waits[wait] = max(0, min(delay, LONGEST_WAIT))
        try:
            # concurrent branches: results of steps must not be lost, nor waits that have yet to be noted
            for _ in range(_TURNS):
                yield Pause(0)
                self.check()
            while self.plans > len(self._waits):
                yield Pause(None)
                self.check()
            self.suspended = FlowSuspended(min(self._waits.values()))
            raise self.suspended
        finally:
            del self._waits[wait]

    def _settled(self, key: str, answer: RecordedStep, value: bytes) -> StoredStep:
        if answer.status is RecordStatus.LOST:
            raise AttemptLost(f"the lease of job {self.attempt.id} is lost; the step {key!r} was not stored")
        if answer.status is RecordStatus.FULL:
            raise FlowError(
                f"job {self.attempt.id} remembers too much for the step {key!r} of {len(value):,} bytes: "
                f"the limit is {LARGEST_MEMORY:,} bytes in {MOST_STEPS:,} steps. Keep large data elsewhere "
                "and return its key"
            )
        exists = answer.status is RecordStatus.EXISTS
        found = StoredStep(key, 0, answer.value, answer.signal) if exists else StoredStep(key, 0, value)
        assert self._known is not None
        self._known[key] = found
        return found

    def _check_version(self) -> Plan[None]:
        if self._version is None:
            return
        given = self._version.encode()
        step = self.stored(_VERSION) or (yield from self.record(_VERSION, given))
        if step.value != given:
            began = (step.value or b"").decode(errors="replace")
            self.refused = FlowVersionMismatch(
                f"the flow began with version {began!r}, and this release has {self._version!r}"
            )
            raise self.refused


def checked_name(name: Any, what: str) -> str:
    """The name of a step or signal. Raises ConfigError."""
    if not isinstance(name, str) or not 1 <= len(name.encode("utf-8", "replace")) <= 200:
        raise ConfigError(f"{what} has 1 to 200 bytes of text, not {name!r:.100}")
    if any(mark in name for mark in _RESERVED):
        raise ConfigError(f"{what} {name!r} must not contain '!' or '#'")
    return name
