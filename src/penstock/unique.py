"""When two jobs are the same."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from penstock.duration import Duration, milliseconds

__all__ = ["Unique", "UniqueKey", "unique_key"]


class Unique(msgspec.Struct, frozen=True):
    """A task's rule: at most one unfinished job of the same task and arguments in its queue.

    With a `period` (ms) the rule also ends that long after the enqueue, finished or not.
    """

    period: int | None = None

    @classmethod
    def of(cls, value: bool | Duration | Unique | None) -> Unique | None:
        """What a user may write: True, a period, a Unique, or nothing."""
        if value is None or value is False:
            return None
        if isinstance(value, Unique):
            return value
        if value is True:
            return cls()
        return cls(milliseconds(value, what="unique"))


class UniqueKey(msgspec.Struct, frozen=True, array_like=True):
    """The rule applied to one job: who else has this key, in this queue, is the same."""

    key: str
    period: int | None = None


def unique_key(rule: Unique, task: str, payload: bytes) -> UniqueKey:
    """The key of one call: 128 bits over the task's name and its encoded arguments."""
    digest = blake2b(task.encode() + b"\0" + payload, digest_size=16)
    return UniqueKey(digest.hexdigest(), rule.period)
