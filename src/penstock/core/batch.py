"""Batches: the rule by which single jobs of a task are collected and run together."""

from __future__ import annotations

import msgspec

from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import ConfigError
from penstock.core.text import plain, shown, whole

__all__ = ["MAX_SIZE", "Batch", "BatchTerms", "batch_id", "check_batch_key"]

#: Maximum number of jobs in one batch: a store makes and ends a batch in one short step.
MAX_SIZE = 1_000
_KEY = 200
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
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
            raise ConfigError(f"Batch(max_size={size!r}) is not a whole number from 1 to {MAX_SIZE}")
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
    if text is None or len(text) > _KEY or not text.isprintable():
        raise ConfigError(
            f"batch_key={shown(key)} is not a valid batch key: use up to {_KEY} printable characters"
        )
    return text


def batch_id(first: str, n: int) -> str:
    """The id of the batch whose first member has the id `first`; `n` distinguishes several such batches."""
    return f"{first[:_STEM]}.batch" + (str(n) if n > 1 else "")
