"""What a ledger holds: one line of JSON per fact, written by whoever saw it happen.

Every fact has the wall clock in ms (`at`), a monotonic clock in ns that all processes of a machine share
(`mono`), and the process that wrote it. What a process asks of a store is written before it asks and
again when it knows the answer, so that a kill in between leaves a question without an answer, not a gap.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Answered",
    "Asked",
    "Ended",
    "Fact",
    "Fault",
    "JobFact",
    "Leased",
    "Offered",
    "Opened",
    "Settled",
    "Settling",
    "Started",
    "Told",
    "decoder",
    "encode",
]


class Fact(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower, omit_defaults=True):
    """The root of all facts."""

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

    `target` is the process that was hit, 0 for all of them.
    """

    kind: str
    target: int
    cause: str = ""


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


class Answered(JobFact, frozen=True):
    """What the store said to that: a word of `store.Verdict`, or

    `unknown` (the reply was lost), `refused` (an error that says that nothing was stored), `follows`
    (the settlement that carried it was applied)."""

    verdict: str
    holder: str = ""  # the id of the job that has its unique key


class Leased(JobFact, frozen=True):
    """A worker has it on loan; `by` is fetch or reclaim."""

    token: str
    worker: str
    attempt: int
    by: str = "fetch"


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


class Settled(JobFact, frozen=True):
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


_AnyFact = Opened | Fault | Offered | Answered | Leased | Started | Ended | Settling | Settled | Asked | Told

decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(_AnyFact)
encode = msgspec.json.Encoder().encode
