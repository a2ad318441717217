"""A job that is written but not yet sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.codec import ResultCodec
from penstock.ids import mint
from penstock.job import FINISHED_KEPT, NewJob
from penstock.options import Options
from penstock.unique import unique_key

__all__ = ["Draft", "Template"]

R_co = TypeVar("R_co", covariant=True)


class Template:
    """What all jobs of one task under the same options share, laid out so that one more costs little.

    `canonical` makes equal arguments equal bytes; it is called for unique jobs only.
    """

    __slots__ = ("_canonical", "_rest", "_unique", "codec", "retention", "task")

    def __init__(
        self,
        task: str,
        options: Options,
        codec: ResultCodec,
        canonical: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.task = task
        self.codec = codec
        self._canonical = canonical
        self._unique = options.unique
        self.retention = FINISHED_KEPT if options.retention is None else options.retention
        self._rest = _fields_after_payload(options, self.retention)

    def new(self, id: str, payload: bytes) -> NewJob:
        """The job of this id and payload."""
        if self._unique is None:
            return NewJob(id, self.task, payload, *self._rest)
        key = unique_key(self._unique, self.task, self._canonical(payload))
        return msgspec.structs.replace(NewJob(id, self.task, payload, *self._rest), unique=key)


class Draft(msgspec.Struct, Generic[R_co]):
    """What `task.job(...)` gives and `app.enqueue_many` takes.

    A draft is one job and keeps its id: sent a second time (say, after a lost reply) it is not stored
    twice, the store answers that it exists.
    """

    template: Template
    payload: bytes
    given_id: str = ""

    @property
    def id(self) -> str:
        """The id that the job has or will have."""
        if not self.given_id:
            self.given_id = mint()
        return self.given_id

    def new(self) -> NewJob:
        """The job for the store."""
        return self.template.new(self.given_id or self.id, self.payload)

    def __repr__(self) -> str:
        return f"<Draft of {self.template.task} {self.payload[:80]!r}>"


def _fields_after_payload(options: Options, retention: int) -> tuple[Any, ...]:
    """The fields of NewJob after the third, in its order."""
    group = None if options.batch is None else options.batch.group(options.group_key)
    given = {**msgspec.structs.asdict(options), "unique": None, "retention": retention, "group": group}
    return tuple(given[name] for name in NewJob.__struct_fields__[3:])
