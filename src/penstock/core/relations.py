"""What a job has to do with others: its flow, its partition, its tenant and its batch.

- A **flow** connects jobs that depend on each other; docs/concepts/flows.md.
- A **partition** is a key and its terms. At most `most` of its jobs are *admitted* (available or running);
  the others wait outside the queue's order.
- A **tenant** only sets a position in that order: jobs of one tenant are a step apart, so that each tenant
  comes once per round.
- A **batch** collects single jobs of a task, which run together.

All are data of a job; the computations for all stores are here.
"""

from __future__ import annotations

import math

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.formats import Duration, milliseconds
from penstock.core.limits import Rate
from penstock.core.text import plain, shown, whole


class Input(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A result that becomes an argument: the value of `node` goes into the parameter `name`.

    `spread`: `name` is a variable parameter (`*args`), and the value becomes its last element.
    """

    node: int
    name: str
    spread: bool = False


class FlowMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of a job in a flow: the flow's queue and id, the number of its node, and its inputs."""

    queue: str
    id: str
    node: int
    inputs: tuple[Input, ...] = ()


# ── partitions and tenants ───────────────────────────────────────────────────────────────────────


#: Maximum bytes of a key.
MOST_PARTITION_KEY = 200
MOST_AT_ONCE = 1_000_000
MOST_WEIGHT = 100
#: Distance between the positions of two jobs of a tenant of weight 1. It is divisible by all small weights,
#: and leaves room in between for other tenants' jobs, in order of arrival.
TENANT_STEP = 7_680


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Limits the running jobs of one partition key in its queue to `most`; the oldest is admitted next.

    `ordered`: one job at a time, in order of arrival regardless of priority; an admitted job stays admitted
    until it has ended. `rate`: the maximum rate at which jobs of this key start.
    """

    key: str
    most: int = 1
    ordered: bool = False
    rate: Rate | None = None

    def rank(self, priority: int) -> int:
        """The rank among waiting jobs of the partition: lower ranks first, then by position."""
        return 0 if self.ordered else -priority

    def allowed_at(self, ready: int, spent: float, throttled_until: int, now: int) -> int | None:
        """The earliest instant at which one more job may be admitted, if there is room.

        None: not before another job has started. `ready` is the number of jobs that are admitted but not
        started. `spent` is the instant at which no past start counts any more: each start moves it forward by
        one step of the rate, from the present or from its value. A value further ahead than starts could have
        moved it comes from a clock that was set back, and is ignored.
        """
        if self.rate is None:
            return throttled_until
        step, left = self.rate.step, self.rate.burst - 1 - ready
        if spent > now + (self.rate.burst + 1) * step:
            spent = now
        return None if left < 0 else max(throttled_until, math.ceil(spent - left * step))

    def after_start(self, spent: float, now: int) -> float:
        """The value of `spent` after one more start. Values left by a clock that was set back are limited."""
        if self.rate is None:
            return spent
        step = self.rate.step
        return min(max(spent, float(now)), now + self.rate.burst * step) + step


class Tenant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tenant of a job, for the fair share: a tenant of weight 3 gets three starts in each round."""

    key: str
    weight: int = 1

    @property
    def step(self) -> int:
        return TENANT_STEP // self.weight


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


#: Maximum number of jobs in one batch: a store makes and ends a batch in one short step.
MAX_BATCH = 1_000
_LONGEST_BATCH_KEY = 200
#: Maximum number of characters of the first member's id in the batch's id, which must be a valid job id.
_STEM = 110


class BatchTerms(msgspec.Struct, frozen=True, array_like=True):
    """The batch in which one job is collected, and when that batch starts.

    A batch collects jobs of the same task, queue and `key`. It starts when it has `size` members, when its
    first member has waited for `wait` ms, or when none has joined for `grace` ms. The terms of the last
    member apply to the whole batch.
    """

    key: str = ""
    size: int = 100
    wait: int | None = None
    grace: int | None = None

    def due(self, first: int, last: int) -> int | None:
        """When a batch is due whose first and last member joined at these instants; None: when it is full."""
        ends = [] if self.wait is None else [first + self.wait]
        if self.grace is not None:
            ends.append(last + self.grace)
        return min(ends, default=None)


class Batch(msgspec.Struct, frozen=True):
    """A task's rule for collecting jobs: its function takes a list, and its jobs are enqueued one by one.

    A batch starts when it has `max_size` members, when its first member has waited for `max_wait`, or when
    none has arrived for `grace`. One of the last two may be None, but not both: members could wait for ever.
    """

    max_size: int = 100
    max_wait: Duration | None = "5s"
    grace: Duration | None = None

    def __post_init__(self) -> None:
        size: object = self.max_size
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_BATCH:
            raise ConfigError(f"Batch(max_size={size!r}) is not a whole number from 1 to {MAX_BATCH}")
        wait, grace = _span(self.max_wait, "max_wait"), _span(self.grace, "grace")
        if wait is None and grace is None:
            raise ConfigError(
                "Batch(max_wait=None, grace=None): an incomplete batch would wait for ever; "
                "give one of the two"
            )
        if wait is not None and grace is not None and grace > wait:
            raise ConfigError(
                f"Batch(max_wait={self.max_wait!r}, grace={self.grace!r}): a grace longer than max_wait has "
                "no effect; make it shorter, or leave it out"
            )

    def terms(self, key: str) -> BatchTerms:
        """The terms of a batch with this key."""
        return BatchTerms(
            key, whole(self.max_size), _span(self.max_wait, "max_wait"), _span(self.grace, "grace")
        )


def _span(value: Duration | None, what: str) -> int | None:
    if value is None:
        return None
    try:
        span = milliseconds(value, what=what)
    except ConfigError as error:
        raise ConfigError(f"Batch: {error}") from None
    if span == 0:
        raise ConfigError(
            f"Batch({what}=0) would collect nothing: use 1ms or more, or None for no such limit"
        )
    return span


def check_batch_key(key: str) -> str:
    """Return the batch key if it is valid: up to 200 printable characters. Raises ConfigError otherwise."""
    text = plain(key) if isinstance(key, str) else None
    if text is None or len(text) > _LONGEST_BATCH_KEY or not text.isprintable():
        raise ConfigError(
            f"batch_key={shown(key)} is not a valid batch key: "
            f"use up to {_LONGEST_BATCH_KEY} printable characters"
        )
    return text


def batch_id(first: str, n: int) -> str:
    """The id of the batch whose first member has the id `first`; `n` distinguishes several such batches."""
    return f"{first[:_STEM]}.batch" + (str(n) if n > 1 else "")
