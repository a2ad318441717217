"""Messages between a worker and the child processes that run its process tasks.

Each message is a frame: its length in 4 bytes, big-endian, then the message in MessagePack.
"""

from __future__ import annotations

import socket

import msgspec

from penstock.config import Config
from penstock.core import lifecycle
from penstock.core.job import Job, Progress
from penstock.core.outcomes import Outcome

__all__ = [
    "Broken",
    "Failed",
    "Frames",
    "FromChild",
    "FunctionReturned",
    "FunctionStarted",
    "Progressed",
    "Ready",
    "RunJob",
    "ToChild",
    "WorkerHello",
    "frame",
    "receive",
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


class RunJob(_Message, frozen=True):
    """Run this job. `module` and `qualname` name its function, `now` is the store's clock."""

    number: int
    job: Job
    module: str
    qualname: str
    now: int
    seconds: float | None  # the attempt's time limit, for `current_job().remaining()`


ToChild = WorkerHello | RunJob

# ── child to worker ──────────────────────────────────────────────────────────────────────────────


class Ready(_Message, frozen=True):
    """The app is imported and its start-up hooks have run."""


class Broken(_Message, frozen=True):
    """The import or a start-up hook has failed; the child ends."""

    cause: str
    traceback: str


class FunctionStarted(_Message, frozen=True):
    """The function is about to be called."""

    number: int


class Progressed(_Message, frozen=True):
    """The function has reported progress."""

    number: int
    progress: Progress


class FunctionReturned(_Message, frozen=True):
    """The function has returned; `result` is encoded, None if the task keeps none."""

    number: int
    result: bytes | None


class Failed(_Message, frozen=True):
    """The function has failed. `kind` is the class name of the outcome, `outcome` its fields."""

    number: int
    kind: str
    outcome: msgspec.Raw

    @classmethod
    def of(cls, number: int, outcome: Outcome) -> Failed:
        return cls(number, type(outcome).__name__, msgspec.Raw(_encoder.encode(outcome)))

    def as_outcome(self) -> Outcome:
        found: Outcome = msgspec.msgpack.decode(self.outcome, type=getattr(lifecycle, self.kind))
        return found


FromChild = Ready | Broken | FunctionStarted | Progressed | FunctionReturned | Failed

# ── frames ───────────────────────────────────────────────────────────────────────────────────────

_encoder = msgspec.msgpack.Encoder()
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def frame(message: ToChild | FromChild) -> bytes:
    """The message as a frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


class Frames:
    """The worker's side: takes bytes as they arrive, returns complete messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[FromChild]:
        rest = self._rest
        rest += data
        messages: list[FromChild] = []
        at = 0
        while len(rest) - at >= 4:
            end = at + 4 + int.from_bytes(rest[at : at + 4], "big")
            if len(rest) < end:
                break
            messages.append(_from_child.decode(bytes(rest[at + 4 : end])))
            at = end
        del rest[:at]
        return messages


def receive(line: socket.socket) -> ToChild | None:
    """The child's side: wait for the next message; None when the worker has closed the socket."""
    head = _exactly(line, 4)
    body = None if head is None else _exactly(line, int.from_bytes(head, "big"))
    return None if body is None else _to_child.decode(body)


def _exactly(line: socket.socket, n: int) -> bytearray | None:
    data = bytearray(n)
    view = memoryview(data)
    while view:
        got = line.recv_into(view)
        if got == 0:
            return None
        view = view[got:]
    return data
