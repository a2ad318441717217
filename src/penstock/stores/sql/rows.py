"""Convert rows of the tables to jobs, and packed columns to values: errors, progress, limits, workers …

An unreadable job raises UnreadableRow. An unreadable value of a packed column never fails a verb: it counts
as absent, or is shown as unreadable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.core.errors import StoreCorrupt
from penstock.core.flow_engine import LiveFlow
from penstock.core.job import AttemptError, Job, NewJob, Progress, Ref, State, stand_in
from penstock.core.lifecycle import set_aside
from penstock.core.limits import NO_LAYERS, NO_LIMITS, LimitChange, LimitLayers, QueueLimits
from penstock.core.relations import Partition
from penstock.core.schedule import Entry, NewEntry, unreadable_entry
from penstock.stores.contract import WorkerInfo
from penstock.stores.sql.statements import STATES, LeasedRow, StoredJobRow
from penstock.stores.text_encoding import storable_error, storable_progress

#: The exceptions of a decoder for bytes that another program has written.
CANNOT_DECODE = (msgspec.MsgspecError, ValueError, RecursionError)
_CANNOT_ENCODE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, AttributeError)
#: Shown instead of an error history that cannot be read.
_NO_HISTORY = (AttemptError(0, 0, "Unreadable", "the errors of earlier attempts cannot be read"),)

_log = logging.getLogger("penstock.stores")
_blob = msgspec.msgpack.Encoder().encode
_errors_of = msgspec.msgpack.Decoder(tuple[AttemptError, ...]).decode
_progress_of = msgspec.msgpack.Decoder(Progress).decode
_limits_of = msgspec.msgpack.Decoder(QueueLimits).decode
_layers_of = msgspec.msgpack.Decoder(tuple[LimitChange, LimitChange]).decode
worker_blob = _blob
_worker_of = msgspec.msgpack.Decoder(WorkerInfo).decode
_entry_of = msgspec.msgpack.Decoder(NewEntry).decode
_logged: set[bytes] = set()  # unreadable limits that were already logged


def errors_of(blob: bytes | None) -> tuple[AttemptError, ...]:
    if blob is None:
        return ()
    try:
        return _errors_of(blob)
    except CANNOT_DECODE:
        return _NO_HISTORY


def errors_blob(errors: Iterable[AttemptError]) -> bytes:
    return _blob([storable_error(error) for error in errors])


def progress_of(blob: bytes | None) -> Progress | None:
    if blob is None:
        return None
    try:
        return _progress_of(blob)
    except CANNOT_DECODE:
        return None


def progress_blob(progress: Progress) -> bytes | None:
    """Encode progress; None if it could not be decoded again. The heartbeat itself still counts."""
    try:
        try:
            blob = _blob(progress)
        except UnicodeEncodeError:
            blob = _blob(storable_progress(progress))
        _progress_of(blob)
    except _CANNOT_ENCODE:
        return None
    return blob


def limits_of(blob: bytes | None) -> QueueLimits:
    """Decode the limits of a queue; no limits for NULL or an unreadable value."""
    if blob is None:
        return NO_LIMITS
    try:
        return _limits_of(blob)
    except CANNOT_DECODE as error:
        if blob not in _logged and len(_logged) < 100:
            _logged.add(blob)
            _log.warning("the settings of a queue cannot be read and count as not set: %s", error)
        return NO_LIMITS


def layers_of(blob: bytes | None, limits: QueueLimits) -> LimitLayers:
    """Decode the source of each limit; the operator, for NULL or an unreadable value."""
    try:
        if blob is not None:
            return LimitLayers(*_layers_of(blob))
    except CANNOT_DECODE:
        pass
    return LimitLayers.by_operator(limits)


def layers_blob(layers: LimitLayers) -> bytes | None:
    return None if layers == NO_LAYERS else _blob(layers.to_dicts())


def why_no_limits(blob: bytes | None) -> str | None:
    """Return why these limits cannot be read; None if they can."""
    try:
        if blob is not None:
            _limits_of(blob)
    except CANNOT_DECODE as error:
        return str(error)
    return None


def worker_of(id: str, seen_at: int, blob: bytes) -> WorkerInfo:
    try:
        return _worker_of(blob)
    except CANNOT_DECODE:
        return WorkerInfo.unreadable(id, seen_at)


def entry_of(ref: Ref, row: Sequence[Any]) -> Entry:
    spec, revision, watermark, paused, last, enqueued, skipped = row
    try:
        return Entry(_entry_of(spec), revision, watermark, paused == 1, last, enqueued, skipped)
    except CANNOT_DECODE as error:
        return unreadable_entry(ref, spec, str(error))


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


spec_blob = msgspec.msgpack.Encoder().encode
_spec_of = msgspec.msgpack.Decoder(NewJob).decode
#: A flow without its nodes.
encode_head = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(LiveFlow).decode
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


_SPEC, _STATE = StoredJobRow._fields.index("spec"), StoredJobRow._fields.index("state")


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
    """Decode a row with the columns of StoredJobRow; raises UnreadableRow."""
    try:
        return _job_of(row, _spec_of(row[_SPEC]), STATES[row[_STATE]])
    except (*CANNOT_DECODE, LookupError) as error:
        raise UnreadableRow({StoredJobRow._make(row).seq: str(error)}) from error


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
            (row.seq, row.spec, row.members) for row in map(StoredJobRow._make, rows)
        ) from error


def unreadable_job(row: Row, ref: Ref, cause: str) -> Job:
    """Return the stand-in that is shown for a job that cannot be read."""
    shown = StoredJobRow._make(row)._replace(errors=None, reason=set_aside(cause).reason, members=None)
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
