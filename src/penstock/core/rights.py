"""The rights that an access token may have, and that acts of operators need."""

from __future__ import annotations

import enum

__all__ = ["INCLUDED", "Right"]


class Right(enum.StrEnum):
    """What a token may do with queues."""

    PRODUCE = "produce"  # enqueue jobs
    CONSUME = "consume"  # take jobs, and settle them
    READ = "read"  # see jobs and sizes
    OPERATE = "operate"  # remove, retry, change and stop what others have enqueued
    ADMIN = "admin"  # everything, and tokens, limits and workers besides

    __hash__ = str.__hash__


#: The rights that a right includes.
INCLUDED = {
    Right.OPERATE: frozenset({Right.OPERATE, Right.READ}),
    Right.ADMIN: frozenset(Right),
}
