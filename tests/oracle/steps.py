"""The steps of jobs, and the signals and waits of the oracle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from penstock.stores.contract import StoredStep

__all__ = ["JobSteps", "MemorySignals", "StoredSignal"]

#: A signal's name, its key, and the id of the job that it is for; None: for any job.
SignalName = tuple[str, str, str | None]


class JobSteps:
    """What one job remembers."""

    __slots__ = ("bytes", "stored", "woken")

    def __init__(self) -> None:
        self.stored: dict[str, StoredStep] = {}
        self.bytes = 0
        self.woken = False  # a signal has come since the job was last suspended

    @property
    def waits(self) -> Iterator[StoredStep]:
        """The steps whose signal has not come."""
        return (step for step in self.stored.values() if step.value is None)


class StoredSignal:
    """A signal that no job waits for."""

    __slots__ = ("data", "keep_until", "sent_at")

    def __init__(self, data: bytes, sent_at: int, keep_until: int) -> None:
        self.data = data
        self.sent_at = sent_at
        self.keep_until = keep_until


class MemorySignals:
    """The signals that no job waits for, and the jobs that wait.

    A wait is (generation, step), with the id of its job. It is listed twice: with the signals for any job,
    and with those for this job.
    """

    __slots__ = ("stored", "waiting")

    def __init__(self) -> None:
        self.stored: dict[SignalName, StoredSignal] = {}
        self.waiting: dict[SignalName, OrderedDict[tuple[int, str], str]] = {}

    def watch(self, signal: tuple[str, str], generation: int, step: str, id: str) -> None:
        """Add a wait, after the others; one that exists stays in its place."""
        for flow in (None, id):
            self.waiting.setdefault((*signal, flow), OrderedDict())[generation, step] = id

    def unwatch(self, signal: tuple[str, str], generation: int, step: str) -> None:
        """Remove a wait."""
        waits = self.waiting.get((*signal, None))
        id = None if waits is None else waits.get((generation, step))
        if id is None:
            return
        for flow in (None, id):
            name = (*signal, flow)
            del self.waiting[name][generation, step]
            if not self.waiting[name]:
                del self.waiting[name]

    def drop_expired(self, now: int) -> None:
        """Remove the signals that have been kept long enough."""
        for name in [name for name, one in self.stored.items() if one.keep_until <= now]:
            del self.stored[name]
