"""What lies in the tables, and the facts that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.job import AttemptError, Job, NewJob, Progress, State
from penstock.limits import NO_LIMITS, QueueLimits
from penstock.store import WorkerInfo
from penstock.stores.wording import storable_error, storable_progress

__all__ = [
    "AVAILABLE",
    "CANCELLED",
    "CODE",
    "ENDED",
    "GROUPED",
    "PARKED",
    "RUNNING",
    "STATES",
    "WAITING",
    "errors_blob",
    "errors_of",
    "is_queued",
    "job_of",
    "leased",
    "limits_of",
    "numbers",
    "progress_blob",
    "spec_blob",
    "spec_of",
    "texts",
    "worker_blob",
    "worker_of",
]

#: A state's number in the tables is its place here: due later < 2, queued < 4 or > 7, ended 5 to 7.
STATES = (
    State.SCHEDULED,
    State.RETRYABLE,
    State.PARKED,
    State.AVAILABLE,
    State.RUNNING,
    State.COMPLETED,
    State.CANCELLED,
    State.DEAD,
    State.WAITING,
    State.GROUPED,
)
CODE = {state: code for code, state in enumerate(STATES)}
PARKED, AVAILABLE, RUNNING, CANCELLED, WAITING, GROUPED = 2, 3, 4, 6, 8, 9
ENDED = range(5, 8)

spec_blob = msgspec.msgpack.Encoder().encode
spec_of = msgspec.msgpack.Decoder(NewJob).decode
worker_blob = msgspec.msgpack.Encoder().encode
worker_of = msgspec.msgpack.Decoder(WorkerInfo).decode
errors_of = msgspec.msgpack.Decoder(tuple[AttemptError, ...]).decode
_ids_of = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_progress_of = msgspec.msgpack.Decoder(Progress).decode
_limits_of = msgspec.msgpack.Decoder(QueueLimits).decode
_json = msgspec.json.Encoder().encode
_blob = msgspec.msgpack.Encoder().encode

Row = tuple[Any, ...]


def is_queued(code: int) -> bool:
    """Whether a job of this state waits to start, one way or another."""
    return code < RUNNING or code > ENDED[-1]


def job_of(row: Row) -> Job:
    """The job of a row whose columns are those of `get.one`: in the order of Job's own fields."""
    errors, progress = row[14], row[16]
    return Job(
        spec_of(row[0]),
        STATES[row[1]],
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[8],
        row[9],
        row[10],
        row[11],
        row[12] == 1,
        row[13] == 1,
        () if errors is None else errors_of(errors),
        row[15],
        None if progress is None else _progress_of(progress),
        row[17],
        row[18],
        row[19],
        () if row[20] is None else _ids_of(row[20]),
    )


def leased(rows: Iterable[Row], now: int, token: str, worker: str) -> list[Job]:
    """The jobs that a fetch has just leased: what it wrote itself it need not read back."""
    running = State.RUNNING
    return [
        Job(
            spec_of(spec),
            running,
            seq,
            attempt,
            lost,
            enqueued_at,
            due,
            now,
            None,
            expires_at,
            token,
            worker,
            False,
            asked == 1,
            () if errors is None else errors_of(errors),
            None,
            None,
            checkpoint,
            None,
            None,
            () if members is None else _ids_of(members),
        )
        for (
            _,
            _,
            seq,
            spec,
            attempt,
            lost,
            enqueued_at,
            due,
            expires_at,
            asked,
            errors,
            checkpoint,
            _,
            members,
        ) in rows
    ]


def errors_blob(errors: tuple[AttemptError, ...]) -> bytes:
    try:
        return _blob(errors)
    except UnicodeEncodeError:
        return _blob([storable_error(error) for error in errors])


def progress_blob(progress: Progress) -> bytes:
    try:
        return _blob(progress)
    except UnicodeEncodeError:
        return _blob(storable_progress(progress))


def limits_of(blob: bytes | None) -> QueueLimits:
    """The limits of a queue; NULL: it has none."""
    return NO_LIMITS if blob is None else _limits_of(blob)


def numbers(values: Iterable[int]) -> str:
    """For json_each: one parameter for a list of any length, so that the statement stays the same."""
    return "[" + ",".join(map(str, values)) + "]"


def texts(values: Iterable[str]) -> str:
    return _json(list(values)).decode()
