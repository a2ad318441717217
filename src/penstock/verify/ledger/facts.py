"""The facts of a ledger: one line of JSON each, written by the process that observed it.

Every fact has the wall clock in ms (`at`), the machine's monotonic clock in ns (`mono`), and the process id.
A store call is written before the call and again after the reply. A kill in between leaves a call without an
answer, not a gap.
"""

from __future__ import annotations

import os
import re
import time
from math import inf

import msgspec

from penstock.core.unique import QUEUED_PHASE, RUNNING_PHASE

#: Wall clock (ms), monotonic clock (ns), process.
Now = tuple[int, int, int]


def timestamp() -> Now:
    """When and where a fact is observed: the first three fields of each."""
    return time.time_ns() // 1_000_000, time.monotonic_ns(), os.getpid()


def _tag(name: str) -> str:
    """The value of `fact` in JSON: the class name in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Fact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag=_tag, omit_defaults=True):
    """The parent class of all facts. `gc=False`: facts are in no reference cycle, and there are millions."""

    at: int
    mono: int
    pid: int


class JobFact(Fact, frozen=True):
    """The parent class of facts about one job."""

    queue: str
    id: str


# ── a run and its faults ─────────────────────────────────────────────────────────────────────────


class Opened(Fact, frozen=True):
    """A process began its ledger file. `parent` is its parent process."""

    parent: int
    host: str
    note: str = ""


class Fault(Fact, frozen=True):
    """An injected fault; `kind` is kill, stop, store or another type.

    - `target`: the process that was hit; 0: all processes.
    - `seconds`: its duration; 0: an instant, or unknown.
    - `queues`: the only queues that were hit, e.g. those of a lost shard; empty: all.
    """

    kind: str
    target: int
    cause: str = ""
    seconds: float = 0.0
    queues: tuple[str, ...] = ()


class Healed(Fact, frozen=True):
    """The last fault of this kind on this target is over."""

    kind: str
    target: int


class Stalled(Fact, frozen=True):
    """This process did not run for so many seconds until now, although a thread of it wanted to."""

    seconds: float


class Limited(Fact, frozen=True):
    """A change of a queue's `max_running`: before the call without `told`, after its success with `told`."""

    queue: str
    max_running: int | None
    told: bool = False


class Ticking(Fact, frozen=True):
    """A tick call: a periodic entry advances from one watermark to the next and enqueues these jobs (ids)."""

    queue: str
    name: str
    revision: int
    watermark: int
    to: int
    jobs: tuple[str, ...] = ()


class TickAnswered(Fact, frozen=True, tag="ticked"):
    """The answer to `Ticking`: a `TickStatus` or `unknown`, and which jobs are new."""

    queue: str
    name: str
    revision: int
    watermark: int
    answer: str
    enqueued: tuple[str, ...] = ()


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


#: The ids of jobs of a renamed task, whose releases share its unique keys, begin so. What follows up to a dot
#: names the call: two jobs of one call must not hold its key together, whatever keys they were given.
INVOICE = "invoice-"
#: A newer name of a task with a periodic entry, and its oldest: the entry of all releases has the oldest.
REMINDED = {"verify.nudge": "verify.remind"}


class Offered(JobFact, frozen=True):
    """An enqueue call of one job. `due` is the earliest instant at which the job may start."""

    task: str
    due: int
    delayed: bool = False
    max_attempts: int = 1
    at_most_once: bool = False
    expires: int | None = None
    retention: int = 0
    unique: str | None = None
    unique_until: int | None = None
    follows: bool = False  # enqueued by a settlement, in the same transaction
    unique_states: int = QUEUED_PHASE | RUNNING_PHASE
    partition: str | None = None
    partition_most: int = 1
    ordered: bool = False
    collected: bool = False  # collected for a batch
    entry: str = ""  # the periodic entry that enqueued it
    timeout: int = 0  # of an attempt (ms; 0: none, or unknown)
    self_recorded: bool = False  # its function writes `Started` and `Ended` itself, in its own process
    flow: str = ""  # the id of the flow that it is a node of: the store enqueues it when the node starts


class Answered(JobFact, frozen=True):
    """The answer to `Offered`: an `EnqueueStatus`, or one of these.

    - `unknown`: the reply was lost.
    - `refused`: an error which guarantees that nothing was stored.
    - `follows`: the settlement that enqueued the job was applied.
    - `skipped`: the tick that would have enqueued the job was not applied.
    """

    verdict: str
    holder: str = ""  # the id of the job that has its unique key


class Leased(JobFact, frozen=True):
    """A worker has leased the job; `by` is fetch, reclaim, or wait (direct dispatch).

    - `sent`: when the worker sent its call (mono; 0: unknown, or none for direct dispatch). `lease`: the
      length of the lease (ms).
    - `offered`: when the worker offered its slots for direct dispatch under the same token (mono; 0: not).
      The store may have leased the job at any time since then, even to a worker that was stopped meanwhile.
    - `members`: the jobs of a batch.
    - `flow`: queue, id and number of the node whose job it is.
    """

    token: str
    worker: str
    attempt: int
    by: str = "fetch"
    sent: int = 0
    lease: int = 0
    members: tuple[str, ...] = ()
    offered: int = 0
    flow: tuple[str, str, int] | None = None

    @property
    def since(self) -> int:
        """The earliest moment (mono) at which the store can have leased it; 0: unknown."""
        return self.offered or self.sent

    @property
    def asked(self) -> int:
        """The earliest moment (mono) at which the store can have leased it; if unknown, when the worker got
        the job. With a store that was away, or a worker that read the answer late, that is much later."""
        return self.since or self.mono


class Started(JobFact, frozen=True):
    """An attempt's function begins. `inside`: written by the task itself, e.g. in its own process."""

    token: str
    worker: str
    attempt: int
    inside: bool = False


class Ended(JobFact, frozen=True):
    """An attempt's function has ended: `returned`, `interrupted`, or the name of its exception."""

    token: str
    outcome: str
    inside: bool = False


class Settling(JobFact, frozen=True):
    """A settle call of one job. `error` is the kind of the attempt's error, or empty."""

    token: str
    state: str
    delay: int = 0
    charge: bool = True
    lost: bool = False
    keep: int = 0
    error: str = ""


class SettleAnswered(JobFact, frozen=True, tag="settled"):
    """The answer to `Settling`: a `Settled` of the store, or `unknown`."""

    token: str
    answer: str


class OperationAsked(JobFact, frozen=True):
    """A call that changes a job: cancel, retry, reschedule, delete, discard, complete, edit, move, or purge.

    The `id` of a purge is `*`. `due`: the new time of a reschedule. `value`: the new arguments of an edit,
    shortened. A move is followed by the `Offered` of the job in its new queue.
    """

    verb: str
    due: int = 0
    value: str = ""


class OperationAnswered(JobFact, frozen=True):
    """The answer to `OperationAsked`: the job's state, empty if nothing was changed, e.g. there is no such
    job, `unknown` if the reply was lost; for a purge the number of removed jobs."""

    verb: str
    answer: str = ""


# ── flows, durable steps and signals ─────────────────────────────────────────────────────────────


class FlowExpected(Fact, frozen=True):
    """How a flow that is about to be enqueued may end, computed without a store.

    - `ends`: the states in which it may end. `result`: its result as JSON, if it completes; empty: unknown.
    """

    id: str
    shape: str
    ends: tuple[str, ...]
    result: str = ""


class FlowPut(Fact, frozen=True):
    """A call that stores nodes of a flow; with `start` the last one. Each job has an `Offered` of its own."""

    queue: str
    id: str
    nodes: int
    start: bool = True


class FlowAnswered(Fact, frozen=True):
    """The answer to `FlowPut`: the state of the flow, `refused`, or `unknown`."""

    queue: str
    id: str
    answer: str


class FlowChanged(Fact, frozen=True):
    """A cancel or retry of a flow: before the call without `answer`, after it with the state, empty if there
    is no such flow, or `unknown`."""

    queue: str
    id: str
    change: str
    answer: str | None = None


class StepRan(JobFact, frozen=True):
    """The function of a durable step, or of an undo, begins, or (`over`) ends, perhaps with an `error`.

    `step`: its own name with its scope, as in `a/charge#2` (`StepLabel.text`); `undo!` stands before it.
    """

    token: str
    step: str
    over: bool = False
    error: str = ""


class StepAnswered(JobFact, frozen=True):
    """The code of a flow got the answer of a step. `mark`: that of the effect that the answer is from."""

    token: str
    step: str
    mark: str


class StepRecorded(JobFact, frozen=True):
    """The answer to a call that stores a step, or waits for a signal: a `RecordStatus`, or `unknown`.

    `sent`: when the call was sent (mono). `value`: what the job remembers by now, shortened. `signal`: name
    and key of the signal that the step has received.
    """

    token: str
    step: str
    status: str
    sent: int = 0
    value: str | None = None
    signal: tuple[str, str] | None = None


class StepChanged(JobFact, frozen=True):
    """The answer to a call that removes a step, or (without a token) to one by which an operator edits it.

    `status`: a `RecordStatus` or `EditStatus`, or `unknown`. `value`: the new one, shortened; None: removed.
    """

    token: str
    step: str
    status: str
    sent: int = 0
    value: str | None = None

    @property
    def until(self) -> float:
        """When it was applied at the latest (mono), if it was; before its call if it was not."""
        if self.status == "unknown":
            return inf
        return self.mono if self.status in ("stored", "applied") else -inf


class SignalSent(Fact, frozen=True):
    """A signal: before the call without `answer`, after it with a `SignalStatus`, or `unknown`."""

    name: str
    key: str
    data: str
    to: str = ""  # the id of the only job that may receive it
    answer: str = ""


_Outside = Opened | Fault | Healed | Stalled | Limited | Ticking | TickAnswered
_OfFlows = FlowExpected | FlowPut | FlowAnswered | FlowChanged | SignalSent
_OfSteps = StepRan | StepAnswered | StepChanged | StepRecorded
_AnyFact = (
    _Outside
    | _OfFlows
    | _OfSteps
    | Offered
    | Answered
    | Leased
    | Started
    | Ended
    | Settling
    | SettleAnswered
    | OperationAsked
    | OperationAnswered
)

decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(_AnyFact)
encode = msgspec.json.Encoder().encode
