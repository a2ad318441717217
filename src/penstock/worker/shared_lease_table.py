"""A table in shared memory of the jobs a worker process has leased, for its supervisor to read.

The process writes and the supervisor reads, without locks. The only words that the supervisor writes are the
`revoked` of an entry and of the fetch. The memory outlives the process, so after a crash it shows which jobs
had started.

    header   magic, pid, heartbeats, state, worker id
    fetch    the numbers of the fetch that was sent, has arrived, is revoked; the token of the one sent
    marks    four columns, a 4-byte word per slot each: entered, started, revoked, ended
    times    three columns, an 8-byte word per slot each: leased until, started at, deadline
    names    a row per slot: number, lengths, generation, id + queue + token, the number again

Each job that is put into a slot gets the slot's next **number**, and a mark is set by writing that number
into it. So marks are never cleared, and a mark for a slot's last job cannot affect its next job. A slot
holds a job if its marks *entered* and *ended* differ.
The number stands before and after the names, and the reader reads the last one first: names that are
being written, or whose writer died, show two different numbers.

All instants are `time.monotonic_ns()`, which all processes of a machine share. Only "leased until" is by
`clock.lease_seconds()`, which keeps running while the machine is suspended.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterable, Sequence

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.job import Job, Lease

#: Rows beyond the worker's slots: for jobs fetched ahead, and jobs that have ended but are not settled yet.
#: Untouched memory costs nothing.
_EXTRA_ROWS = 8_192

_MAGIC = b"PENLEAS4"  # the last digit is the version of the layout
_HEADER = 256
# 8-byte words; word 0 is the magic
_PID, _HEARTBEAT, _LOOP, _STATE, _HIGH, _ID_LENGTH, _STORE = range(1, 8)
_ID_AT = 64
_SENT, _ARRIVED, _FETCH_REVOKED, _IDLE = range(24, 28)
_TOKEN_AT = 224
_token = struct.Struct("@32s")

_MARKS = 4 * 4
_TIMES = 3 * 8
_TEXT = 416  # an id of 128 characters, a queue of 255, and a token
_names = struct.Struct(f"@IHHHQ{_TEXT}sI")
_NAMES = -(-_names.size // 8) * 8
_TAIL = _names.size - 4
_pack_names = _names.pack_into

_NO_SLOT = -1


class ChildState(enum.IntEnum):
    """The phase of a worker process."""

    STARTING = 0
    RUNNING = 1
    QUIET = 2
    DRAINING = 3
    STOPPED = 4


_STATES = frozenset(ChildState)


class Header(msgspec.Struct, frozen=True):
    """The state of a worker process. `pid` is 0 until the process has announced itself."""

    pid: int
    worker: str
    state: ChildState
    heartbeat_ns: int  # when its heartbeat last reached the store
    loop_ns: int  # when its event loop last ran
    store_ns: int = 0  # when it last announced itself to the store; 0: not yet
    idle: bool = False  # nothing runs: its event loop runs seldom


class LeaseEntry(msgspec.Struct, frozen=True):
    """A leased job. `number` distinguishes it from earlier and later jobs in the same slot."""

    slot: int
    number: int
    queue: str
    id: str
    token: str
    generation: int
    until_ns: int
    started: bool
    revoked: bool
    started_ns: int  # 0: not started
    deadline_ns: int  # 0: none

    @property
    def lease(self) -> Lease:
        return Lease(self.queue, self.id, self.token, self.generation)


class LeaseTable:
    """One worker process's leases. Created by the supervisor, or by a worker without one.

    The writer's methods (`announce` to `free`) must be called from one thread, except `record_heartbeat`.
    """

    def __init__(self, fd: int, *, fresh: bool) -> None:
        self._map = mapped(fd, os.fstat(fd).st_size)
        if fresh:
            self._map[:8] = _MAGIC
        elif self._map[:8] != _MAGIC:
            self._map.close()
            raise ConfigError("this file is not a lease table of this version of Penstock")
        self._u32 = memoryview(self._map).cast("I")
        self._u64 = memoryview(self._map).cast("Q")
        self.capacity = n = (len(self._map) - _HEADER) // (_MARKS + _TIMES + _NAMES)
        times, marks = _HEADER >> 3, _HEADER + n * _TIMES >> 2
        self._until, self._started_ns, self._deadline = (
            self._u64[times + i * n : times + (i + 1) * n] for i in range(3)
        )
        self._entered, self._started, self._revoked, self._ended = (
            self._u32[marks + i * n : marks + (i + 1) * n] for i in range(4)
        )
        self._names_at = _HEADER + n * (_TIMES + _MARKS)
        self._damaged_row = ""  # found by the reader
        # private to the writer
        self._numbers: list[int] = []
        self._free: list[int] = []

    @classmethod
    def create(cls, concurrency: int) -> LeaseTable:
        """Create a table for a worker with `concurrency` slots. Pass `fileno()` to its process."""
        slots = (concurrency + _EXTRA_ROWS + 1) // 2 * 2  # even, so that all rows are aligned to 8 bytes
        size = _HEADER + slots * (_MARKS + _TIMES + _NAMES)
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, size)
            keep_size(fd)
            table = cls(fd, fresh=True)
        except BaseException:  # boundary: only closes the file, then raises again
            os.close(fd)
            raise
        table._fd = fd
        return table

    @classmethod
    def attach(cls, fd: int) -> LeaseTable:
        """The table behind a file descriptor that was passed by another process; the table owns it."""
        try:
            table = cls(fd, fresh=False)
            os.set_inheritable(fd, False)
        except BaseException:  # boundary: only closes the file, then raises again
            os.close(fd)
            raise
        table._fd = fd
        return table

    _fd = _NO_SLOT

    def fileno(self) -> int:
        """The file descriptor of the table, to pass it to another process."""
        return self._fd

    def close_file(self) -> None:
        """Close the file and keep the memory: for a process whose tasks must not find it open."""
        if self._fd != _NO_SLOT:
            os.close(self._fd)
            self._fd = _NO_SLOT

    def close(self) -> None:
        for view in (
            self._until,
            self._started_ns,
            self._deadline,
            self._entered,
            self._started,
            self._revoked,
            self._ended,
        ):
            view.release()
        self._u32.release()
        self._u64.release()
        self._map.close()
        self.close_file()

    # ── the worker process writes ────────────────────────────────────────────────────────────────

    def announce(self, worker: str, state: ChildState = ChildState.RUNNING) -> None:
        """Write the worker's id and pid."""
        text = worker.encode()[:128]
        self._map[_ID_AT : _ID_AT + len(text)] = text
        self._u64[_ID_LENGTH] = len(text)
        self._u64[_STATE] = state
        self.record_heartbeat()
        self.tick()
        self._u64[_PID] = os.getpid()

    def state(self, state: ChildState) -> None:
        self._u64[_STATE] = state

    def record_heartbeat(self) -> None:
        """Record that a heartbeat has just reached the store."""
        self._u64[_HEARTBEAT] = time.monotonic_ns()

    def record_store_answer(self) -> None:
        """Record that the store has just accepted an announcement."""
        self._u64[_STORE] = time.monotonic_ns()

    def tick(self) -> None:
        """Record that the event loop runs."""
        self._u64[_LOOP] = time.monotonic_ns()

    def set_idle(self, idle: bool) -> None:
        """Record whether nothing runs: an idle event loop calls `tick` only seldom."""
        self._u64[_IDLE] = idle

    def fetch_sent(self, token: str) -> None:
        """Enter the token of a fetch that is sent now; a repeated fetch is not entered again."""
        _token.pack_into(self._map, _TOKEN_AT, token.encode())
        self._u64[_SENT] += 1

    def fetch_arrived(self) -> bool:
        """Record that the jobs of the fetch are in the table. False if the supervisor has revoked the fetch:
        then none of them must start, and the caller releases them itself, as after `try_start`."""
        self._u64[_ARRIVED] = sent = self._u64[_SENT]  # this mark first: see `revoke`
        return sent == 0 or self._u64[_FETCH_REVOKED] != sent

    def put(self, job: Job, until_ns: int) -> int:
        """Enter a leased job and return its slot; -1 if there is no room (the supervisor does not see it)."""
        return self.put_many((job,), until_ns)[0]

    def put_many(self, jobs: Iterable[Job], until_ns: int) -> list[int]:
        """`put` for each; the slots in order."""
        numbers, until, memory, names_at = self._numbers, self._until, self._map, self._names_at
        entered = self._entered
        slots: list[int] = []
        last_queue = last_token = None
        queue = token = rest = b""
        for job in jobs:
            spec = job.spec
            if spec.queue is not last_queue or job.token is not last_token:
                last_queue, last_token = spec.queue, job.token
                queue, token = last_queue.encode(), (last_token or "").encode()
                rest = queue + token
            id = spec.id.encode()
            slot = self._free_slot() if len(id) + len(rest) <= _TEXT else _NO_SLOT
            slots.append(slot)
            if slot < 0:
                continue
            number = numbers[slot] = numbers[slot] % 0xFFFFFFFF + 1
            until[slot] = until_ns
            _pack_names(
                memory, names_at + slot * _NAMES,
                number, len(id), len(queue), len(token), job.generation, id + rest, number,
            )  # fmt: skip
            entered[slot] = number
        return slots

    def _free_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self._numbers)
        if slot == self.capacity:
            return _NO_SLOT
        self._numbers.append(0)
        self._u64[_HIGH] = slot + 1
        return slot

    def try_start(self, slot: int, deadline_ns: int = 0) -> bool:
        """Mark the job as started. False if the supervisor has revoked it: then it must not start.

        On False the caller releases the job itself. If the supervisor has done so before, the store
        answers STALE, which is harmless.
        """
        return slot < 0 or self.try_start_entry(slot, self._numbers[slot], deadline_ns)

    def number(self, slot: int) -> int:
        """The number of the job in this slot."""
        return self._numbers[slot]

    def try_start_entry(self, slot: int, number: int, deadline_ns: int) -> bool:
        """`try_start` for the job with this number; a child process of the writer may call it, too."""
        self._started_ns[slot] = time.monotonic_ns()
        self._deadline[slot] = deadline_ns
        self._started[slot] = number  # write this mark first, then read the other: see `revoke`
        if self._revoked[slot] != number:
            return True
        self._started[slot] = 0
        return False

    def set_deadline(self, slot: int, deadline_ns: int) -> None:
        """Set the deadline of a function that starts only now (in a thread or process)."""
        if slot >= 0:
            self._deadline[slot] = deadline_ns

    def renew(self, slot: int, until_ns: int) -> None:
        """Record that the store has extended the lease."""
        if slot >= 0:
            self._until[slot] = until_ns

    def free(self, slot: int) -> None:
        """Free the slot: its job is settled."""
        if slot >= 0:
            self._ended[slot] = self._numbers[slot]
            self._free.append(slot)

    # ── its supervisor reads ─────────────────────────────────────────────────────────────────────

    def damage(self, pid: int) -> str:
        """What shows that something else than the worker process with this pid has written here; else ""."""
        u64 = self._u64
        if self._map[:8] != _MAGIC:
            return "its first word"
        if u64[_PID] not in (0, pid):
            return "the pid"
        if u64[_STATE] not in _STATES or u64[_HIGH] > self.capacity or u64[_ID_LENGTH] > 128:
            return "the header"
        if max(u64[_HEARTBEAT], u64[_LOOP], u64[_STORE]) > time.monotonic_ns():
            return "a time"
        return self._damaged_row

    def header(self) -> Header:
        u64 = self._u64
        worker = self._map[_ID_AT : _ID_AT + min(u64[_ID_LENGTH], 128)].decode(errors="replace")
        return Header(
            pid=u64[_PID],
            worker=worker,
            state=ChildState(u64[_STATE]) if u64[_STATE] in _STATES else ChildState.STARTING,
            heartbeat_ns=u64[_HEARTBEAT],
            loop_ns=u64[_LOOP],
            store_ns=u64[_STORE],
            idle=u64[_IDLE] != 0,
        )

    def entries(self) -> list[LeaseEntry]:
        """All leased jobs. One that is being entered at this moment may be missing."""
        high = min(self._u64[_HIGH], self.capacity)
        entered, ended = self._entered[:high].tolist(), self._ended[:high].tolist()
        if entered == ended:  # most reads: an idle worker is looked at twenty times a second
            return []
        held = [slot for slot, number in enumerate(entered) if number != ended[slot]]
        return [entry for entry in map(self._read, held) if entry is not None]

    def revoke(self, entries: Sequence[LeaseEntry]) -> list[LeaseEntry]:
        """Revoke jobs that have not started. Those returned will not start and belong to the caller.

        Both sides write their own mark first and then read the other's, so at least one of them sees both
        marks; if the process does, it does not start the job. A processor may delay a write by some
        nanoseconds while it reads on. So the supervisor waits a millisecond between its write and its read;
        the process does not wait, because it starts a thousand jobs for each one that is revoked.
        """
        if not entries:
            return []
        for entry in entries:
            self._revoked[entry.slot] = entry.number
        time.sleep(0.001)
        return [entry for entry in entries if self._is_waiting(entry)]

    @property
    def fetches(self) -> bool:
        """Whether a fetch, or an offer to the store, is in flight."""
        return self._u64[_SENT] != self._u64[_ARRIVED]

    def revoke_fetch(self) -> str | None:
        """Revoke the fetch in flight, and return its token; None if there is none, or if its jobs have
        arrived. They will not start, and belong to the caller, as after `revoke`."""
        self._u64[_FETCH_REVOKED] = sent = self._u64[_SENT]
        time.sleep(0.001)
        token = self._map[_TOKEN_AT : _TOKEN_AT + _token.size].rstrip(b"\0").decode(errors="replace")
        # read after the token, which is written before its number
        return token if self._u64[_SENT] == sent != self._u64[_ARRIVED] else None

    def _is_waiting(self, entry: LeaseEntry) -> bool:
        slot, number = entry.slot, entry.number
        return (
            self._started[slot] != number
            and self._ended[slot] != number
            and self._u32[self._names_at + slot * _NAMES >> 2] == number
        )

    def _read(self, slot: int) -> LeaseEntry | None:
        at = self._names_at + slot * _NAMES
        for _ in range(5):  # read again if it was written in the meantime; a half-written row stays invalid
            tail = self._u32[at + _TAIL >> 2]
            raw = self._map[at : at + _names.size]
            started, revoked, ended = self._started[slot], self._revoked[slot], self._ended[slot]
            until, started_ns, deadline = self._until[slot], self._started_ns[slot], self._deadline[slot]
            head = self._u32[at >> 2]
            number, id_length, queue_length, token_length, generation, text, number_again = _names.unpack(raw)
            if not tail == number == number_again == head:
                continue
            if number in (0, ended):
                return None
            queue_at, token_at = id_length, id_length + queue_length
            is_started = started == number
            try:
                queue, id = text[queue_at:token_at].decode(), text[:queue_at].decode()
                token = text[token_at : token_at + token_length].decode()
            except UnicodeDecodeError:
                self._damaged_row = f"row {slot}"
                return None
            return LeaseEntry(
                slot=slot,
                number=number,
                queue=queue,
                id=id,
                token=token,
                generation=generation,
                until_ns=until,
                started=is_started,
                revoked=revoked == number,
                started_ns=started_ns if is_started else 0,
                deadline_ns=deadline if is_started else 0,
            )
        return None


def mapped(fd: int, size: int, offset: int = 0) -> mmap.mmap:
    """Map a part of this file. Before Python 3.13 the map keeps a descriptor of the file open."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, offset=offset, trackfd=False)
    return mmap.mmap(fd, size, offset=offset)


def keep_size(fd: int) -> None:
    """Let nobody truncate this anonymous file: whoever reads the memory that is gone would be killed."""
    import fcntl  # Linux has it

    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):  # an ordinary file
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def _anonymous_file() -> int:
    """Create an anonymous file, in memory if the platform supports that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-leases", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
