"""The verbs of durable steps: what a job remembers, and the signals that it waits for.

docs/concepts/steps.md explains them with examples.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from penstock.core.job import Lease, Ref
from penstock.core.security import Secret
from penstock.stores.contract.request import OfRef, Request, SyncRequest

#: The most steps of one job, and the most bytes of their names and values together.
MOST_STEPS, LARGEST_MEMORY = 20_000, 8 * 1024 * 1024
#: The longest name of a step, in bytes of UTF-8.
LONGEST_STEP_NAME = 512
#: The step of a job that has functions to undo its steps: a cancelled one runs once more before it ends, and
#: it does not expire.
STEP_UNDO = "undo!"
#: The longest name or key of a signal: the name of a step that waits for it holds its name.
LONGEST_SIGNAL_NAME = 200
#: The largest data of a signal (bytes).
LARGEST_SIGNAL = 256 * 1024
#: Defaults: how long a signal that no job waits for is kept (ms), and how many of them per namespace.
SIGNAL_KEPT, MOST_SIGNALS = 7 * 86_400_000, 10_000
#: A job gets no signal that was sent more than this (ms) before its enqueue: it was meant for an earlier job.
#: A node of a flow gets every kept signal, because it may be enqueued long after its flow.
SIGNAL_GRACE = 1_000


class StepRecord(msgspec.Struct, frozen=True, gc=False):
    """A step to remember: append it if the lease is held and the job has no step of this name.

    A wait of this name ends: its signal is no longer awaited. `by`: extends the lease to `by` ms from now.
    """

    lease: Lease
    name: str
    value: Annotated[bytes, Secret.STEP]
    by: int


class StepRemoval(msgspec.Struct, frozen=True, gc=False):
    """A step to forget, if the lease is held. A wait of this name ends: its signal goes to others.

    `waiting`: only if the step still waits for its signal. `by`: extends the lease to `by` ms from now.
    """

    lease: Lease
    name: str
    by: int
    waiting: bool = False


class RecordStatus(enum.StrEnum):
    """The result of recording a step or a wait."""

    STORED = "stored"  # the step is stored, or the job waits for the signal
    EXISTS = "exists"  # the job has this step: nothing was stored, and its value is in the answer
    LOST = "lost"  # the lease is lost: nothing was stored
    FULL = "full"  # the job has MOST_STEPS steps, or LARGEST_MEMORY bytes: nothing was stored

    __hash__ = str.__hash__


class RecordedStep(msgspec.Struct, frozen=True):
    """The answer for one record or wait.

    If the status is EXISTS: `value` is that of the stored step; `signal`: as in `StoredStep`.
    """

    status: RecordStatus
    value: Annotated[bytes | None, Secret.STEP] = None
    signal: tuple[str, str] | None = None


class StoredStep(msgspec.Struct, frozen=True):
    """A step that a job remembers, and when it was stored.

    - `signal`: name and key of the signal that the job waits for (`value` is None), or has received.
    - `left_out`: the bytes of a value that was longer than asked for; `value` is then empty. For an encrypted
      value, about as many.
    """

    name: str
    at: int
    value: Annotated[bytes | None, Secret.STEP] = None
    signal: tuple[str, str] | None = None
    left_out: int = 0

    @property
    def size(self) -> int:
        """The bytes of the value, also if it was left out; 0 while the job waits."""
        return len(self.value or b"") + self.left_out

    def within(self, largest: int) -> StoredStep:
        """The step, without its value if that has more than `largest` bytes."""
        size = len(self.value or b"")
        if size <= largest:
            return self
        return StoredStep(self.name, self.at, b"", self.signal, size)


class StepEdit(msgspec.Struct, frozen=True):
    """An operator's change of a step: its new value; None drops it."""

    name: str
    value: Annotated[bytes | None, Secret.STEP]


class EditStatus(enum.StrEnum):
    """The result of editing the steps of a job."""

    APPLIED = "applied"
    MISSING = "missing"  # there is no job
    RUNNING = "running"  # a worker has the job, and its steps in memory: nothing was changed
    FULL = "full"  # the job would have MOST_STEPS steps, or LARGEST_MEMORY bytes: nothing was changed

    __hash__ = str.__hash__


class SignalWait(msgspec.Struct, frozen=True, gc=False):
    """A wait for a signal: its data becomes the value of the step `step`.

    `by`: extends the lease. `keep`: how long (ms) the wait stays, unless it is repeated.
    """

    lease: Lease
    step: str
    name: str
    key: str
    by: int
    keep: int = SIGNAL_KEPT


class Signal(msgspec.Struct, frozen=True, gc=False):
    """A signal. With `flow`, only the job with this id can receive it.

    `keep` (ms) and `most` (of the namespace) are the limits of signals that no job waits for. `replace`: if
    a signal with this name, key and flow is stored, this one takes its place.
    """

    name: str
    key: str
    data: Annotated[bytes, Secret.SIGNAL]
    flow: str | None = None
    keep: int = SIGNAL_KEPT
    most: int = MOST_SIGNALS
    replace: bool = False


class KeptSignal(msgspec.Struct, frozen=True):
    """A stored signal that no job has received."""

    name: str
    key: str
    flow: str | None
    data: Annotated[bytes, Secret.SIGNAL]
    sent_at: int
    keep_until: int


class SignalWaiter(msgspec.Struct, frozen=True):
    """A job that waits for a signal, and the step that is to get it.

    `of`: the value of the job's step `…!of` beside it: what data the wait takes.
    """

    ref: Ref
    step: str
    of: Annotated[bytes | None, Secret.STEP] = None


class SignalStatus(enum.StrEnum):
    """The result of sending a signal."""

    RECEIVED = "received"  # a waiting job has it
    STORED = "stored"  # no job waits for it yet
    EXISTS = "exists"  # a signal with this name, key and flow is stored: the first one stays
    FULL = "full"  # the namespace has `most` signals that no job waits for
    REPLACED = "replaced"  # a stored signal with this name, key and flow has the new data

    __hash__ = str.__hash__


class RecordSteps(SyncRequest[list[RecordedStep]], frozen=True):
    """Append each step to its job's memory if the lease token still matches, and extend the lease.

    - A step is stored for itself; the steps before it are neither read nor written.
    - The first value of a name stays: repeating a call whose reply was lost is safe.
    - A job's steps stay when it is suspended, retried or dead, and are removed with it.
    - A job that remembers STEP_UNDO does not expire, and `cancel` does not end it.

    Answer: one `RecordedStep` per record, in order.
    """

    records: Sequence[StepRecord]


class ForgetSteps(SyncRequest[list[RecordedStep]], frozen=True):
    """Remove each step from its job's memory if the lease token still matches, and extend the lease.

    - STORED: the job has no step of this name, also if it had none.
    - EXISTS, with `waiting`: the signal of the step has come; the step stays, and is in the answer.
    - Repeating a call whose reply was lost is safe.

    Answer: one `RecordedStep` per removal, in order.
    """

    removals: Sequence[StepRemoval]


class ReadSteps(OfRef[list[StoredStep]], frozen=True, kw_only=True):
    """Read the steps of a job, in the order in which they were stored.

    - `names`: only the steps with these names; other names have no place in the answer.
    - `largest`: a value of more bytes is left out, so 0 lists the steps without their values.
    - With one of them, steps that are stored meanwhile may be missing.
    """

    verb: ClassVar[str] = "steps"

    names: Sequence[str] | None = None
    largest: int | None = None


class AwaitSignals(SyncRequest[list[RecordedStep]], frozen=True):
    """Wait for signals, if the lease token still matches, and extend the lease.

    - If the signal has been sent already, it is consumed: its data becomes the value of the step, and the
      answer is EXISTS with it. So is the answer if the step has a value.
    - Otherwise the job waits: the first signal with this name and key becomes the value of the step. If
      the job is suspended then, it becomes available; if it still runs, its next suspension makes it
      available at once.
    - Repeating a wait changes nothing; with another name or key, the step waits for this signal instead
      of the first. The waits of a job that has ended take no signal.

    Answer: one `RecordedStep` per wait, in order.
    """

    waits: Sequence[SignalWait]


class SendSignals(SyncRequest[list[SignalStatus]], frozen=True):
    """Send signals: each goes to one waiting job, or is stored until a job waits for it.

    - A signal is consumed once. A stored one is removed after `keep` ms.
    - Signals with a flow and without one are different signals.

    Answer: one `SignalStatus` per signal, in order.

    Errors: NotReplicated if they are stored, but on fewer replicas than the store's URL requires.
    """

    signals: Sequence[Signal]


class EditSteps(OfRef[EditStatus], frozen=True):
    """Change what a job remembers that no worker has now. For operators.

    - All edits are made, or none. Dropping a step that is not there changes nothing.
    - A wait that gets a value ends with it, as if its signal had come; one that is dropped ends.
    - A suspended job becomes available, to look again. Any other state stays.
    """

    edits: Sequence[StepEdit]


class Signals(Request[list[KeptSignal]], frozen=True, kw_only=True):
    """List stored signals that no job has received, in the order of name, key and flow ("": any).

    `name`, `key`: only these. `after`: those behind this name, key and flow.
    """

    name: str | None = None
    key: str | None = None
    after: tuple[str, str, str] | None = None
    limit: int = 100


class ForgetSignals(Request[list[bool]], frozen=True):
    """Remove stored signals by name, key and flow. Answer: whether each was stored."""

    names: Sequence[tuple[str, str, str | None]]


class SignalWaiters(SyncRequest[list[SignalWaiter]], frozen=True):
    """Tell which jobs wait for a signal now, in no order."""

    name: str
    key: str
    limit: int = 100
