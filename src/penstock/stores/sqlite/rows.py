"""Convert rows of the tables to jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from penstock.core.errors import StoreCorrupt
from penstock.core.job import Job, NewJob, Ref, State, stand_in
from penstock.core.lifecycle import set_aside
from penstock.core.partition import Partition
from penstock.stores.sqlite.blobs import CANNOT_DECODE, errors_of, progress_of
from penstock.stores.sqlite.columns import LeasedRow, SqliteJobRow
from penstock.stores.sqlite.states import STATES

__all__ = [
    "Row",
    "RowBefore",
    "UnreadableRow",
    "check_state",
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

spec_blob = msgspec.msgpack.Encoder().encode
_spec_of = msgspec.msgpack.Decoder(NewJob).decode
_ids_of = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_json = msgspec.json.Encoder().encode

Row = tuple[Any, ...]


_STATE_NUMBERS = frozenset(range(len(STATES)))


class UnreadableRow(StoreCorrupt):
    """Raised for jobs that cannot be decoded or moved; `causes`: generation → reason.

    The caller of a verb that raises UnreadableRow sets these jobs aside and runs the verb again; see
    `verbs/aside.py`.
    """

    def __init__(self, causes: dict[int, str]) -> None:
        super().__init__(f"a job in the file cannot be read: {next(iter(causes.values()))}")
        self.causes = causes


class RowBefore(NamedTuple):
    """The row of a job before a change; see partitions.py and fair_share.py."""

    seq: int
    state: int | None  # None: the job is new
    priority: int
    place: int
    partition: str | None
    admitted: int | None
    spec: bytes

    @property
    def terms(self) -> Partition:
        """The rules of the job's partition."""
        partition = spec_of(self.seq, self.spec).partition
        assert partition is not None
        return partition


_SPEC, _STATE = SqliteJobRow._fields.index("spec"), SqliteJobRow._fields.index("state")


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────


def spec_of(seq: int, blob: bytes) -> NewJob:
    """Decode the NewJob of the job with this generation; raises UnreadableRow."""
    try:
        return _spec_of(blob)
    except CANNOT_DECODE as error:
        raise UnreadableRow({seq: str(error)}) from error


def specs_of(rows: Iterable[tuple[int, bytes]]) -> list[NewJob]:
    """Decode several NewJobs; the UnreadableRow that is raised names all that cannot be read."""
    rows = list(rows)
    try:
        return [_spec_of(blob) for _, blob in rows]
    except CANNOT_DECODE as error:
        raise _unreadable((seq, blob, None) for seq, blob in rows) from error


def job_of(row: Row) -> Job:
    """Decode a row with the columns of SqliteJobRow; raises UnreadableRow."""
    try:
        return _job_of(row, _spec_of(row[_SPEC]), STATES[row[_STATE]])
    except (*CANNOT_DECODE, LookupError) as error:
        raise UnreadableRow({SqliteJobRow._make(row).seq: str(error)}) from error


def check_state(seq: int, state: int) -> None:
    """Raise UnreadableRow if no state has this number."""
    if state not in _STATE_NUMBERS:
        raise UnreadableRow({seq: f"no state has the number {state!r}"})


def jobs_of(rows: Iterable[Row]) -> list[Job]:
    """Decode several rows; the UnreadableRow that is raised names all that cannot be read."""
    rows = list(rows)
    try:
        return [job_of(row) for row in rows]
    except UnreadableRow as error:
        raise _unreadable(
            (row.seq, row.spec, row.members) for row in map(SqliteJobRow._make, rows)
        ) from error


def unreadable_job(row: Row, ref: Ref, cause: str) -> Job:
    """Return the stand-in that is shown for a job that cannot be read."""
    shown = SqliteJobRow._make(row)._replace(errors=None, reason=set_aside(cause).reason, members=None)
    state = STATES[shown.state] if 0 <= shown.state < len(STATES) else State.DEAD
    return _job_of(shown, stand_in(ref, shown.spec), state)


def _job_of(row: Row, spec: NewJob, state: State) -> Job:
    (
        _,
        _,
        seq,
        attempt,
        lost,
        enqueued_at,
        due,
        fetched_at,
        ended_at,
        expires_at,
        token,
        worker,
        started,
        cancel_asked,
        errors,
        result,
        progress,
        checkpoint,
        reason,
        batch,
        members,
    ) = row
    return Job(
        spec,
        state,
        seq,
        attempt,
        lost,
        enqueued_at,
        due,
        fetched_at,
        ended_at,
        expires_at,
        token,
        worker,
        started == 1,
        cancel_asked == 1,
        errors_of(errors),
        result,
        progress_of(progress),
        checkpoint,
        reason,
        batch,
        () if members is None else _ids_of(members),
    )


def leased(rows: Iterable[Row], now: int, token: str, worker: str) -> list[Job]:
    """Decode the jobs that a fetch has just leased; values that it has just written are passed in.

    Raises UnreadableRow.
    """
    rows = list(rows)
    try:
        return _leased(rows, now, token, worker)
    except CANNOT_DECODE as error:
        raise _unreadable((row.seq, row.spec, row.members) for row in map(LeasedRow._make, rows)) from error


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


def _unreadable(rows: Iterable[tuple[int, bytes, bytes | None]]) -> UnreadableRow:
    """Find the jobs that cannot be read; each row is (generation, spec, members)."""
    causes: dict[int, str] = {}
    for seq, spec, members in rows:
        try:
            _spec_of(spec)
            if members is not None:
                _ids_of(members)
        except CANNOT_DECODE as error:
            causes[seq] = str(error)
    return UnreadableRow(causes)


def numbers(values: Iterable[int]) -> str:
    """Encode numbers as JSON for json_each: one parameter for a list of any length."""
    return "[" + ",".join(map(str, values)) + "]"


def texts(values: Iterable[str]) -> str:
    """Encode texts as JSON for json_each."""
    return _json(list(values)).decode()
