"""Messages between a worker and the child processes that run its process tasks.

Each message is a frame: its length in 4 bytes, big-endian, then the message in MessagePack.
"""

from __future__ import annotations

import msgspec

from penstock.config import Config
from penstock.core import lifecycle
from penstock.core.job import Job, Progress
from penstock.core.outcomes import Outcome
from penstock.stores.job_log import LogLine

__all__ = [
    "Broken",
    "Failed",
    "Frames",
    "FromChild",
    "FunctionReturned",
    "Logged",
    "Progressed",
    "Ready",
    "Refused",
    "RunJob",
    "ToChild",
    "WorkerHello",
    "frame",
    "from_child",
    "to_child",
]


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


ToChild = WorkerHello | RunJob

# ── child to worker ──────────────────────────────────────────────────────────────────────────────


class Ready(_Message, frozen=True):
    """The app is imported and its start-up hooks have run."""


class Broken(_Message, frozen=True):
    """The import or a start-up hook has failed; the child ends."""

    cause: str
    traceback: str


class Refused(_Message, frozen=True):
    """The function was not called, because its lease was revoked or is no longer certain."""

    number: int


class Progressed(_Message, frozen=True):
    """The function has reported progress."""

    number: int
    progress: Progress


class Logged(_Message, frozen=True):
    """The function has logged a line."""

    number: int
    line: LogLine


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
        found: Outcome = msgspec.msgpack.decode(self.outcome, type=getattr(lifecycle, self.kind))
        return found


FromChild = Ready | Broken | Progressed | Logged | Refused | FunctionReturned | Failed

# ── frames ───────────────────────────────────────────────────────────────────────────────────────

_encoder = msgspec.msgpack.Encoder()
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def frame(message: ToChild | FromChild) -> bytes:
    """The message as a frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


def to_child(body: bytes | bytearray) -> ToChild:
    return _to_child.decode(body)


def from_child(body: bytes | bytearray) -> FromChild:
    return _from_child.decode(body)


class Frames:
    """Takes bytes as they arrive, returns the bodies of complete frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        rest = self._rest
        rest += data
        bodies: list[bytes] = []
        at, size = 0, len(rest)
        while size - at >= 4:
            end = at + 4 + int.from_bytes(rest[at : at + 4], "big")
            if size < end:
                break
            bodies.append(bytes(rest[at + 4 : end]))
            at = end
        del rest[:at]
        return bodies
