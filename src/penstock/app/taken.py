"""A job taken without a worker: its facts, its arguments, its lease."""

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
from penstock.stores.job_log import JobLog, LogLine, store_logs

__all__ = ["INTERRUPTED_BECAUSE", "Taken"]

_log = logging.getLogger("penstock.take")

#: The messages of the errors that end a block, with the id of its job.
INTERRUPTED_BECAUSE: dict[type[Interrupted], str] = {
    AttemptLost: "the lease of job {} is lost: the block's outcome is ignored",
    AttemptCancelled: "job {} was cancelled while it ran",
    AttemptTimeout: "the attempt of job {} timed out",
}


class Taken(Attempt):
    """A taken job: the facts of its attempt, its arguments, its lease."""

    __slots__ = ("_by", "_log", "_progress", "_store", "_task", "result", "value")

    def __init__(
        self, job: Job, store: Store, by: int, ends: float | None, task: Task[..., Any] | None
    ) -> None:
        super().__init__(job, self._keep_progress, ends)
        self._store = store
        self._by = by
        self._task = task
        self._progress: Progress | None = None
        self._log = JobLog()
        #: The block's result, and its encoded bytes.
        self.value: Any = None
        self.result: bytes | None = None

    @property
    def payload(self) -> bytes:
        """The payload as it was enqueued."""
        return self.job.spec.payload

    def json(self) -> Any:
        """The payload, decoded as JSON. Raises Undecodable."""
        return read_json(self.payload, self.id)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, in the types of the task. Raises Undecodable or ConfigError."""
        return self._call()[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments, in the types of the task."""
        return self._call()[1]

    def returns(self, value: Any) -> None:
        """Set the job's result for `handle.result()`; kept for the job's retention."""
        codec = ANY_RESULT if self._task is None else self._task.result
        self.result = codec.encode(value) if self.job.spec.retention or self.job.spec.flow else None
        self.value = value

    async def extend(self) -> None:
        """Extend the lease now, in addition to the heartbeat. Raises AttemptLost if it is lost."""
        await self._renewed()

    async def record_start(self) -> None:
        """Like `extend`, and store the start so that it survives a power cut."""
        await self._renewed(lasting=True)

    async def _renewed(self, *, lasting: bool = False) -> None:
        if await self.send_heartbeat(lasting=lasting) is LeaseStatus.LOST:
            raise AttemptLost(INTERRUPTED_BECAUSE[AttemptLost].format(self.id))

    async def send_heartbeat(self, *, lasting: bool = False) -> LeaseStatus:
        """Send one heartbeat: extend the lease, record the start, store the progress."""
        reported = self._progress
        request = HeartbeatRequest(self.job.lease, self._by, started=True, lasting=lasting, progress=reported)
        try:
            (status,) = await self._store.extend([request])
        except StoreError:
            raise
        except Exception:  # noqa: BLE001  # boundary: the lease must hold even if the progress cannot be stored
            _log.exception("job %s: progress could not be stored", self.id)
            (status,) = await self._store.extend([replace(request, progress=None)])
        if status is LeaseStatus.UNKNOWN:
            raise StoreUnavailable(
                f"job {self.id}: the part of the store that holds its queue is unreachable"
            )
        if self._progress is reported:  # otherwise newer progress waits
            self._progress = None
        if status is LeaseStatus.CANCEL_ASKED:
            self._cancelled = True
        if self._log.waits:
            await store_logs(self._store, [(self.job.lease, self._log)], self._by)
        return status

    @property
    def has_progress(self) -> bool:
        """Whether there is progress, or are log lines, not stored yet."""
        return self._progress is not None or self._log.waits

    def _keep_progress(self, _: Job, reported: Progress | LogLine) -> None:
        if isinstance(reported, Progress):
            self._progress = reported
        else:
            self._log.append(reported)

    def _call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._task is None:
            raise ConfigError(f"this app has no task {self.task!r}: read .payload or .json() instead")
        try:
            return self._task.args.decode(self.payload)
        except SignatureMismatch as error:  # a block that ends with this error parks the job
            error.job = self.id
            raise
