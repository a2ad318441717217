"""What lies in the tables, and the facts that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.core.errors import StoreCorrupt
from penstock.core.job import Job, NewJob, Ref, State, stand_in
from penstock.core.lifecycle import set_aside
from penstock.stores.sqlite.blobs import CANNOT_DECODE, errors_of, progress_of

__all__ = [
    "AVAILABLE",
    "CANCELLED",
    "CODE",
    "DEAD",
    "ENDED",
    "GROUPED",
    "PARKED",
    "RUNNING",
    "STATES",
    "WAITING",
    "Unreadable",
    "is_queued",
    "job_of",
    "jobs_of",
    "leased",
    "numbers",
    "spec_blob",
    "spec_of",
    "specs_of",
    "texts",
    "unreadable_job",
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
PARKED, AVAILABLE, RUNNING, CANCELLED, DEAD, WAITING, GROUPED = 2, 3, 4, 6, 7, 8, 9
ENDED = range(5, 8)

spec_blob = msgspec.msgpack.Encoder().encode
_spec_of = msgspec.msgpack.Decoder(NewJob).decode
_ids_of = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_json = msgspec.json.Encoder().encode

Row = tuple[Any, ...]


class Unreadable(StoreCorrupt):
    """Jobs that cannot be decoded or moved: their generations, and why.

    Whoever runs a verb that raises this sets them aside and runs it again; see `verbs/aside.py`.
    """

    def __init__(self, causes: dict[int, str]) -> None:
        super().__init__(f"a job in the file cannot be read: {next(iter(causes.values()))}")
        self.causes = causes


def is_queued(code: int) -> bool:
    """Whether a job of this state waits to start, one way or another."""
    return code < RUNNING or code > ENDED[-1]


# ── one place where rows become jobs ─────────────────────────────────────────────────────────────


def spec_of(seq: int, blob: bytes) -> NewJob:
    """What was asked for by the job of this generation; raises Unreadable."""
    try:
        return _spec_of(blob)
    except CANNOT_DECODE as error:
        raise Unreadable({seq: str(error)}) from error


def specs_of(rows: Iterable[tuple[int, bytes]]) -> list[NewJob]:
    """The same of several; what is raised names all that cannot be read."""
    rows = list(rows)
    try:
        return [_spec_of(blob) for _, blob in rows]
    except CANNOT_DECODE as error:
        raise _unreadable((seq, blob, None) for seq, blob in rows) from error


def job_of(row: Row) -> Job:
    """The job of a row whose columns are those of `get.one`; raises Unreadable."""
    try:
        return _job_of(row, _spec_of(row[0]), STATES[row[1]])
    except (*CANNOT_DECODE, LookupError) as error:
        raise Unreadable({row[2]: str(error)}) from error


def jobs_of(rows: Iterable[Row]) -> list[Job]:
    """The same of several; what is raised names all that cannot be read."""
    rows = list(rows)
    try:
        return [job_of(row) for row in rows]
    except Unreadable as error:
        raise _unreadable((row[2], row[0], row[20]) for row in rows) from error


def unreadable_job(row: Row, ref: Ref, cause: str) -> Job:
    """What is shown in the place of a job that cannot be read."""
    state = STATES[row[1]] if 0 <= row[1] < len(STATES) else State.DEAD
    blank = (*row[:14], None, *row[15:18], set_aside(cause).reason, row[19], None)
    return _job_of(blank, stand_in(ref, row[0]), state)


def _job_of(row: Row, spec: NewJob, state: State) -> Job:
    """The columns stand in the order of Job's own fields."""
    return Job(
        spec,
        state,
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
        errors_of(row[14]),
        row[15],
        progress_of(row[16]),
        row[17],
        row[18],
        row[19],
        () if row[20] is None else _ids_of(row[20]),
    )


def leased(rows: Iterable[Row], now: int, token: str, worker: str) -> list[Job]:
    """The jobs that a fetch has just leased: what it wrote itself is not read back. Raises Unreadable."""
    rows = list(rows)
    try:
        return _leased(rows, now, token, worker)
    except CANNOT_DECODE as error:
        raise _unreadable((row[2], row[3], row[13]) for row in rows) from error


def _leased(rows: Iterable[Row], now: int, token: str, worker: str) -> list[Job]:
    running = State.RUNNING
    return [
        Job(
            _spec_of(spec),
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


def _unreadable(rows: Iterable[tuple[int, bytes, bytes | None]]) -> Unreadable:
    """Of these generations, specs and members: which cannot be read."""
    causes: dict[int, str] = {}
    for seq, spec, members in rows:
        try:
            _spec_of(spec)
            if members is not None:
                _ids_of(members)
        except CANNOT_DECODE as error:
            causes[seq] = str(error)
    return Unreadable(causes)


def numbers(values: Iterable[int]) -> str:
    """For json_each: one parameter for a list of any length, so that the statement stays the same."""
    return "[" + ",".join(map(str, values)) + "]"


def texts(values: Iterable[str]) -> str:
    return _json(list(values)).decode()
