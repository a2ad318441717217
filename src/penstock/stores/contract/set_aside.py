"""Stored records that cannot be read, as verbs report them; see docs/concepts/unreadable-records.md."""

from __future__ import annotations

import msgspec

__all__ = ["SetAside"]


class SetAside(msgspec.Struct, frozen=True):
    """A stored record that could not be read and was set aside, so that it blocks nothing.

    | kind | consequence |
    |---|---|
    | "job" | the job is dead |
    | "periodic entry" | the entry is never due |
    | "settings" | the queue's settings count as not set |
    | "worker" | the worker (`id`) counts as absent |
    | "outbox entry" | the job that should have followed another job is not enqueued |

    `cause` says why the record cannot be read.
    """

    kind: str
    queue: str
    id: str
    cause: str

    def __str__(self) -> str:
        where = f" of the queue {self.queue}" if self.queue else ""
        return f"{self.kind} {self.id}{where}: {self.cause}"
