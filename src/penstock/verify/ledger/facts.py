"""What a ledger holds: one line of JSON per fact, written by whoever saw it happen.

Every fact has the wall clock in ms (`at`), a monotonic clock in ns that all processes of a machine share
(`mono`), and the process that wrote it. What a process asks of a store is written before it asks and
again when it knows the answer, so that a kill in between leaves a question without an answer, not a gap.
"""

from __future__ import annotations

import msgspec

from penstock.core.unique import WHILE_QUEUED, WHILE_RUNNING

__all__ = [
    "Answered",
    "Asked",
    "Ended",
    "Fact",
    "Fault",
    "Healed",
    "JobFact",
    "Leased",
    "Limited",
    "Offered",
    "Opened",
    "SettleAnswered",
    "Settling",
    "Started",
    "Ticked",
    "Ticking",
    "Told",
    "decoder",
    "encode",
]


class Fact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag=str.lower, omit_defaults=True):
    """The root of all facts. A fact is in no cycle, and there are millions of them."""

    at: int
    mono: int
    pid: int


class Opened(Fact, frozen=True):
    """A process began its file. `parent` is the process that started it."""

    parent: int
    host: str
    note: str = ""


class Fault(Fact, frozen=True):
    """Somebody did harm on purpose: `kind` is kill, stop, store or another word.

    `target` is the process that was hit, 0 for all of them. It lasted for so many `seconds`; 0: an instant,
    or nobody said. `queues` are those whose jobs alone it hit, as a lost part of a store does; none: all.
    """

    kind: str
    target: int
    cause: str = ""
    seconds: float = 0.0
    queues: tuple[str, ...] = ()


class Healed(Fact, frozen=True):
    """The harm of this kind that was done last to this target is over."""

    kind: str
    target: int


class Limited(Fact, frozen=True):
    """A queue's `max_running` was asked to be this, first without `told`, then with it: it is so."""

    queue: str
    max_running: int | None
    told: bool = False


class Ticking(Fact, frozen=True):
    """A periodic entry is about to be moved from one watermark to the next, with these jobs (ids)."""

    queue: str
    name: str
    revision: int
    watermark: int
    to: int
    jobs: tuple[str, ...] = ()


class Ticked(Fact, frozen=True):
    """What the store said to that: a word of `store.TickStatus`, or `unknown`; and which jobs are new."""

    queue: str
    name: str
    revision: int
    watermark: int
    answer: str
    enqueued: tuple[str, ...] = ()


class JobFact(Fact, frozen=True):
    """The root of what concerns one job."""

    queue: str
    id: str


class Offered(JobFact, frozen=True):
    """A producer is about to enqueue it. `due` is the earliest instant at which it may start."""

    task: str
    due: int
    delayed: bool = False
    max_attempts: int = 1
    at_most_once: bool = False
    expires: int | None = None
    retention: int = 0
    unique: str | None = None
    unique_until: int | None = None
    follows: bool = False  # enqueued by a settlement, in its step
    unique_states: int = WHILE_QUEUED | WHILE_RUNNING
    lane: str | None = None
    lane_most: int = 1
    ordered: bool = False
    grouped: bool = False  # collected for a batch
    entry: str = ""  # the periodic entry that it is of


class Answered(JobFact, frozen=True):
    """What the store said to that: a word of `store.EnqueueStatus`, or

    `unknown` (the reply was lost), `refused` (an error that says that nothing was stored), `follows`
    (the settlement that carried it was applied), `skipped` (its periodic entry was not moved on so)."""

    verdict: str
    holder: str = ""  # the id of the job that has its unique key


class Leased(JobFact, frozen=True):
    """A worker has it on loan; `by` is fetch, reclaim, or wait (which handed it over).

    The worker asked for it at `sent` (mono; 0: unknown), for `lease` ms. If it had offered to take jobs under
    the same token while it waited, it did so at `offered` (mono; 0: it had not): the store may have leased
    the job at any time since then, also to a worker that was stopped meanwhile. A batch has `members`.
    """

    token: str
    worker: str
    attempt: int
    by: str = "fetch"
    sent: int = 0
    lease: int = 0
    members: tuple[str, ...] = ()
    offered: int = 0

    @property
    def since(self) -> int:
        """The earliest moment (mono) at which the store can have leased it; 0: unknown."""
        return self.offered or self.sent

    @property
    def asked(self) -> int:
        """When its holder asked for a job (mono): long before the store gave it, if that was away. Where
        nobody knows, when he had it."""
        return self.sent or self.mono


class Started(JobFact, frozen=True):
    """An attempt's function begins. `inside`: written by the task itself, perhaps in a process of its own."""

    token: str
    worker: str
    attempt: int
    inside: bool = False


class Ended(JobFact, frozen=True):
    """An attempt's function is done: `returned`, `interrupted`, or the name of what it raised."""

    token: str
    outcome: str
    inside: bool = False


class Settling(JobFact, frozen=True):
    """A holder is about to settle it so. `error` is the kind of the error that goes with it."""

    token: str
    state: str
    delay: int = 0
    charge: bool = True
    lost: bool = False
    keep: int = 0
    error: str = ""


class SettleAnswered(JobFact, frozen=True, tag="settled"):
    """What the store said to that: a word of `store.Settled`, or `unknown`."""

    token: str
    answer: str


class Asked(JobFact, frozen=True):
    """Somebody is about to cancel, retry, reschedule, delete or purge it (`id` is `*` for a purge).

    `due` is the new time of a reschedule.
    """

    verb: str
    due: int = 0


class Told(JobFact, frozen=True):
    """What the store said to that: the job's state as that verb answers it, empty for no such job,

    `unknown` where the reply was lost; of a purge, how many jobs went."""

    verb: str
    answer: str = ""


_Outside = Opened | Fault | Healed | Limited | Ticking | Ticked
_AnyFact = _Outside | Offered | Answered | Leased | Started | Ended | Settling | SettleAnswered | Asked | Told

decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(_AnyFact)
encode = msgspec.json.Encoder().encode
