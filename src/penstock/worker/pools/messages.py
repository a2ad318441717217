"""Messages between a worker and the child processes that run its process tasks.

Each message is a frame: its length in 4 bytes, big-endian, the same bits inverted, then the message in
MessagePack. A task may write to the socket, or read from it, so both sides look whether a frame begins where
they expect one: what cannot be read raises ChannelBroken, and that child is broken.

The process that forks children (`fork_server.py`) gets its hello as such a frame; all else between it and the
worker are packets with a kind of one byte.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.config import Config
from penstock.core import lifecycle
from penstock.core.job import Job, Progress
from penstock.core.outcomes import Outcome
from penstock.core.running import Awaited
from penstock.stores.job_log import LogLine


class ChannelBroken(Exception):
    """The other process has sent or shown something that it never sends by itself."""


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# ── worker to child ──────────────────────────────────────────────────────────────────────────────


class WorkerHello(_Message, frozen=True):
    """The first message: the worker's pid, and how to set up the child like the worker."""

    parent: int
    path: list[str]
    argv: list[str]
    main_module: str | None  # the module, if the worker was started as `python -m …`
    main_file: str | None  # the file, if it was started as `python …`
    app: str | None
    config: Config | None
    nice: int = 0  # added to the worker's niceness
    cpus: tuple[int, ...] = ()  # processors it may use; empty: those of the worker


class RunJob(_Message, frozen=True):
    """Run this job as soon as the token with its number is claimed.

    `module` and `qualname` name its function. `entry` is its slot and number in the worker's lease table.
    """

    number: int
    job: Job
    module: str
    qualname: str
    epoch: int  # the store's clock (ms) when `time.monotonic()` was 0
    seconds: float | None  # the attempt's time limit, for `current_job().remaining()`
    until: float  # `clock.lease_seconds()` from which on it must not start
    entry: tuple[int, int] | None
    large: tuple[int, int] | None  # where the arguments lie in the arena, if the job came without them
    step: bool = False  # call the named function itself, for a durable step of the job


ToChild = WorkerHello | RunJob

# ── child to worker ──────────────────────────────────────────────────────────────────────────────


class Ready(_Message, frozen=True):
    """The app is imported and its start-up hooks have run."""


class Broken(_Message, frozen=True):
    """The import or a start-up hook has failed; the child ends."""

    cause: str
    traceback: str


class Refused(_Message, frozen=True):
    """The function was not called: the lease is revoked or no longer certain, or it is too late for it."""

    number: int


class Progressed(_Message, frozen=True):
    """The function has reported progress."""

    number: int
    reported: Progress


class Logged(_Message, frozen=True):
    """The function has logged a line."""

    number: int
    reported: LogLine


class Waits(_Message, frozen=True):
    """The function waits for the results of other jobs, or no longer."""

    number: int
    reported: Awaited


class FunctionReturned(_Message, frozen=True):
    """The function has returned; `result` is encoded, None if the task keeps none."""

    number: int
    started: float  # `time.monotonic()` at its start
    took: float  # seconds that the function ran
    spent: float  # seconds from its arguments to its result, decoding and encoding included
    result: bytes | None
    large: tuple[int, int] | None = None  # where the result lies in the arena, if it is not `result`


class Failed(_Message, frozen=True):
    """The function has failed. `kind` is the class name of the outcome, `outcome` its fields."""

    number: int
    started: float  # 0: the function was not called
    took: float
    kind: str
    outcome: msgspec.Raw

    @classmethod
    def of(cls, number: int, started: float, took: float, outcome: Outcome) -> Failed:
        return cls(number, started, took, type(outcome).__name__, msgspec.Raw(_encoder.encode(outcome)))

    def as_outcome(self) -> Outcome:
        try:
            found: Outcome = msgspec.msgpack.decode(self.outcome, type=getattr(lifecycle, self.kind))
        except (msgspec.DecodeError, AttributeError, TypeError) as error:
            raise ChannelBroken(f"sent an outcome that cannot be read: {error}") from None
        return found


FromChild = Ready | Broken | Progressed | Logged | Waits | Refused | FunctionReturned | Failed

# ── frames ───────────────────────────────────────────────────────────────────────────────────────

OVERWRITTEN = "shows a call that it was not given: its shared memory was overwritten"
_HEADER = struct.Struct(">II")
_INVERTED = 0xFFFFFFFF
_encoder = msgspec.msgpack.Encoder()
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def frame(message: ToChild | FromChild) -> bytes:
    """The message as a frame."""
    body = _encoder.encode(message)
    size = len(body)
    return _HEADER.pack(size, size ^ _INVERTED) + body


def to_child(body: bytes | bytearray) -> ToChild:
    """Decode a message to a child. Raises ChannelBroken."""
    try:
        return _to_child.decode(body)
    except msgspec.DecodeError as error:
        raise ChannelBroken(f"sent a message that cannot be read: {error}") from None


def from_child(body: bytes | bytearray) -> FromChild:
    """Decode a message of a child. Raises ChannelBroken."""
    try:
        return _from_child.decode(body)
    except msgspec.DecodeError as error:
        raise ChannelBroken(f"sent a message that cannot be read: {error}") from None


class Frames:
    """Takes bytes as they arrive, returns the bodies of complete frames. Raises ChannelBroken."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        rest = self._rest
        rest += data
        bodies: list[bytes] = []
        at, size = 0, len(rest)
        while size - at >= 8:
            length, inverted = _HEADER.unpack_from(rest, at)
            if length ^ _INVERTED != inverted:
                raise ChannelBroken("sent bytes that are no message")
            end = at + 8 + length
            if size < end:
                break
            bodies.append(bytes(rest[at + 8 : end]))
            at = end
        del rest[:at]
        return bodies


# ── packets of the fork server ───────────────────────────────────────────────────────────────────

#: Requests: fork a child with the two descriptors of this packet; reap the child with this pid.
FORK, REAP = b"F", b"R"
_EVENT = struct.Struct("<qi")


class Reply:
    """Packets to the worker: a reason, or a pid and a number."""

    READY, UNCLEAN, FORKED, FAILED, EXITED = b"S", b"U", b"P", b"E", b"X"

    @staticmethod
    def of(kind: bytes, pid: int, number: int) -> bytes:
        return kind + _EVENT.pack(pid, number)

    @staticmethod
    def event(packet: bytes) -> tuple[int, int]:
        """The pid, and the exit code or error number."""
        pid, number = _EVENT.unpack_from(packet, 1)
        return pid, number
