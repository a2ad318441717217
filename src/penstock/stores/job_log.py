"""The log of a job: lines that its function writes, stored with the job in a few rows, and read again.

The lines of an attempt are collected, and stored with its heartbeats and before its settlement: each time as
one step of the job (`StepRecord`), which is removed with the job.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence

import msgspec

from penstock.core.job import Job, Lease, Ref
from penstock.core.text import storable
from penstock.stores.contract import Capability, RecordStatus, StepRecord, Store, StoredStep

#: Limits of one job's log: lines, bytes of one line and of all of them.
LINES_KEPT, LONGEST_LINE, LOG_BYTES = 200, 4_096, 65_536
#: How the names of steps with lines of a log begin; the name of no other step does.
_PREFIX = "log!"
#: How many logs of earlier attempts are read at once.
_READS = 50
_FULL = "(the log of this job is full: later lines are not kept)"


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of a job's log: when it was written (ms, by the worker's clock), and its text."""

    at: int
    text: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[LogLine]).decode


def shortened(text: str) -> str:
    """The text as a log keeps it: at most LONGEST_LINE bytes of UTF-8."""
    whole = storable(text[:LONGEST_LINE])
    encoded = whole.encode()
    if len(encoded) <= LONGEST_LINE and len(text) <= LONGEST_LINE:
        return whole
    return encoded[: LONGEST_LINE - 3].decode(errors="ignore") + "…"


class JobLog:
    """The lines of one attempt that are not stored yet, oldest first. Thread-safe.

    Two threads may store the same lines at once: a row is named by the number of its first line, and the
    first value of a name stays. With the `job`, as it was leased, earlier lines need not be read if it cannot
    have any.
    """

    def __init__(self, job: Job | None = None) -> None:
        self._lock = threading.RLock()  # re-entrant: a signal handler may log
        self._lines: list[LogLine] = []
        self._first = 0  # the number of the first waiting line in this attempt
        self._room: tuple[int, int] | None = None  # lines and bytes left; None: earlier attempts not counted
        if job is not None and _never_ran(job):
            self.count([])

    def append(self, line: LogLine) -> None:
        """Add a line; more than any log can keep are dropped."""
        with self._lock:
            if len(self._lines) <= LINES_KEPT:
                self._lines.append(line)

    def drop(self) -> None:
        """Forget the lines that wait."""
        with self._lock:
            self._lines.clear()

    @property
    def waits(self) -> bool:
        """Whether lines wait to be stored."""
        return bool(self._lines)

    @property
    def counted(self) -> bool:
        """Whether the lines of earlier attempts are counted."""
        return self._room is not None

    def count(self, stored: Sequence[LogLine]) -> None:
        """Count the lines of earlier attempts against the limits."""
        self._room = LINES_KEPT - len(stored), LOG_BYTES - _size(stored)

    def row(self) -> tuple[int, list[LogLine]]:
        """The number of the first waiting line, and the lines to store now: those that the log has room for.

        The last line that fits says that the log is full.
        """
        with self._lock:
            lines, size = self._room or (0, 0)
            kept: list[LogLine] = []
            for line in self._lines:
                size -= len(line.text.encode())
                if lines - len(kept) <= 0:
                    break
                last = lines - len(kept) == 1 or size < 0
                kept.append(LogLine(line.at, _FULL) if last else line)
                if last:
                    break
            return self._first, kept

    def stored(self, first: int, kept: Sequence[LogLine]) -> None:
        """Note that these lines, from number `first` on, are stored."""
        with self._lock:
            if first != self._first:
                return  # noted before
            lines, size = self._room or (0, 0)
            full = not kept or kept[-1].text == _FULL
            self._room = (0, 0) if full else (lines - len(kept), size - _size(kept))
            del self._lines[: len(self._lines) if full else len(kept)]
            self._first += max(1, len(kept))


def _size(lines: Sequence[LogLine]) -> int:
    return sum(len(line.text.encode()) for line in lines)


def _never_ran(job: Job) -> bool:
    """Whether a leased job cannot have run before: each way back to its queue changes one of these facts."""
    return job.attempt <= 1 and not job.lost and not job.errors and job.run_at == job.enqueued_at


_Logs = Sequence[tuple[Lease, JobLog]]


async def store_logs(store: Store, logs: _Logs, by: int) -> None:
    """Store the lines that wait; `by` extends the leases.

    A store that keeps no steps keeps no lines: they are dropped.

    Raises the first error, a StoreError if the store gave it: the lines that it concerns then still wait. It
    concerns one job if its earlier lines cannot be read, else the jobs of one queue.
    """
    by_queue: dict[str, list[tuple[Lease, JobLog]]] = {}
    if not store.can(Capability.STEPS):
        for _, log in logs:
            log.drop()
        return
    for lease, log in logs:
        by_queue.setdefault(lease.queue, []).append((lease, log))
    reads = asyncio.Semaphore(_READS)
    error = await _first_error([_store_of_queue(store, some, by, reads) for some in by_queue.values()])
    if error is not None:
        raise error


async def _store_of_queue(store: Store, logs: _Logs, by: int, reads: asyncio.Semaphore) -> None:
    error = await _first_error([_count(store, *one, reads) for one in logs if not one[1].counted])
    await _store_counted(store, [one for one in logs if one[1].counted], by)
    if error is not None:
        raise error


async def _first_error(calls: Sequence[Coroutine[None, None, None]]) -> BaseException | None:
    """Run all calls to their end."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return next((error for error in answers if error is not None), None)


async def _count(store: Store, lease: Lease, log: JobLog, reads: asyncio.Semaphore) -> None:
    async with reads:
        log.count(lines_of(await store.steps(Ref(lease.queue, lease.id))))


async def _store_counted(store: Store, logs: _Logs, by: int) -> None:
    while waiting := [(lease, log, *log.row()) for lease, log in logs if log.waits]:
        rows = [one for one in waiting if one[3]]
        for _, log, first, kept in waiting:
            if not kept:
                log.stored(first, [])
        records = [
            StepRecord(lease, f"{_PREFIX}{lease.token}.{first}", _encode(kept), by)
            for lease, _, first, kept in rows
        ]
        answers = await store.record_steps(records) if records else []
        for (_, log, first, kept), answer in zip(rows, answers, strict=True):
            if answer.status is RecordStatus.EXISTS:
                log.stored(first, _lines(answer.value or b""))
            else:  # of a lost lease, or of a job with too many steps, nothing more is kept
                log.stored(first, kept if answer.status is RecordStatus.STORED else [])


async def log_and_steps(store: Store, ref: Ref) -> list[StoredStep]:
    """The steps of a job: those with lines of its log, and the others without their values."""
    steps = await store.steps(ref, largest=0)
    names = [step.name for step in steps if is_log(step)]
    logs = {step.name: step for step in await store.steps(ref, names=names)} if names else {}
    return [logs.get(step.name, step) for step in steps]


def is_log(step: StoredStep) -> bool:
    """Whether a stored step holds lines of the log."""
    return step.name.startswith(_PREFIX)


def lines_of(steps: Sequence[StoredStep]) -> list[LogLine]:
    """The lines of a job's log, among its steps, in their order."""
    return [line for step in steps if is_log(step) for line in _lines(step.value or b"")]


def _lines(row: bytes) -> list[LogLine]:
    """The lines of a row; none if it cannot be read, as without the key of an encrypted store."""
    try:
        return _decode(row)
    except msgspec.MsgspecError:
        return []
