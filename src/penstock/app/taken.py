"""A job in hand, taken without a worker: its facts, its arguments, its lease."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from penstock.app.attempt import Attempt
from penstock.app.task import Task
from penstock.codec import ANY_RESULT
from penstock.core.errors import (
    AttemptCancelled,
    AttemptLost,
    AttemptTimeout,
    ConfigError,
    Interrupted,
    SignatureMismatch,
    StoreError,
    StoreUnavailable,
)
from penstock.core.job import Job, Progress, read_json
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Store

__all__ = ["INTERRUPTED_BECAUSE", "Taken"]

_log = logging.getLogger("penstock.take")

#: The messages of the errors that end a block, with the id of its job.
INTERRUPTED_BECAUSE: dict[type[Interrupted], str] = {
    AttemptLost: "the lease of job {} is gone: nothing that this block does still counts",
    AttemptCancelled: "job {} was cancelled while it ran",
    AttemptTimeout: "the time of this attempt of job {} is over",
}


class Taken(Attempt):
    """A job in hand: the facts of its attempt, its arguments, its lease."""

    __slots__ = ("_by", "_progress", "_store", "_task", "result", "value")

    def __init__(
        self, job: Job, store: Store, by: int, ends: float | None, task: Task[..., Any] | None
    ) -> None:
        super().__init__(job, self._keep_progress, ends)
        self._store = store
        self._by = by
        self._task = task
        self._progress: Progress | None = None
        #: What the block has returned, and its bytes.
        self.value: Any = None
        self.result: bytes | None = None

    @property
    def payload(self) -> bytes:
        """The bytes as they were enqueued."""
        return self.job.spec.payload

    def json(self) -> Any:
        """The payload, read as JSON; raises Undecodable."""
        return read_json(self.payload, self.id)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, typed as the task says. Raises Undecodable, or ConfigError."""
        return self._call()[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments, decoded in the same way."""
        return self._call()[1]

    def returns(self, value: Any) -> None:
        """Make this the job's result, for `handle.result()`; kept for as long as the job's retention says."""
        codec = ANY_RESULT if self._task is None else self._task.result
        self.result = codec.encode(value) if self.job.spec.retention else None
        self.value = value

    async def extend(self) -> None:
        """Prolong the lease now, whatever the heartbeat does; raises AttemptLost if it is gone."""
        await self._renewed()

    async def record_start(self) -> None:
        """As `extend`, and the record of the start survives a power cut."""
        await self._renewed(lasting=True)

    async def _renewed(self, *, lasting: bool = False) -> None:
        if await self.beat(lasting=lasting) is LeaseStatus.LOST:
            raise AttemptLost(INTERRUPTED_BECAUSE[AttemptLost].format(self.id))

    async def beat(self, *, lasting: bool = False) -> LeaseStatus:
        """One heartbeat: prolong the lease, record the start, pass the progress on."""
        said = self._progress
        request = HeartbeatRequest(self.job.lease, self._by, started=True, lasting=lasting, progress=said)
        try:
            (status,) = await self._store.extend([request])
        except StoreError:
            raise
        except Exception:  # noqa: BLE001  # boundary: the lease must hold, whatever the block says of itself
            _log.exception("job %s: its progress cannot be stored", self.id)
            (status,) = await self._store.extend([replace(request, progress=None)])
        if status is LeaseStatus.UNKNOWN:
            raise StoreUnavailable(f"job {self.id}: the part of the store that has its queue is away")
        if self._progress is said:  # else it has said more meanwhile
            self._progress = None
        if status is LeaseStatus.CANCEL_ASKED:
            self._cancelled = True
        return status

    @property
    def has_words(self) -> bool:
        """Whether it has said something of its progress that is not in the store."""
        return self._progress is not None

    def _keep_progress(self, _: Job, progress: Progress) -> None:
        self._progress = progress

    def _call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._task is None:
            raise ConfigError(f"this app has no task {self.task!r}: read .payload or .json() instead")
        try:
            return self._task.args.decode(self.payload)
        except SignatureMismatch as error:  # if the block ends with it, the job is parked
            error.job = self.id
            raise
