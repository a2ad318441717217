"""A chaos run: its processes, its store, and the record of the injected faults."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.core.errors import PenstockError
from penstock.verify.environment import Proxies
from penstock.verify.fleet import Fleet, Member
from penstock.verify.ledger import Ledger
from penstock.verify.ledger.rules.recovery import LostShard

#: Target of a fault that costs no process an attempt; no process has this id.
NO_PROCESS = -1
#: During these faults any lease may expire; during a lost shard only leases of its queues.
_AFFECTS_ALL = {
    *("restart-store", "power-cut", "stop-store", "reset", "half-open", "failover", "lost-shard", "disk-full")
}


@dataclass(frozen=True)
class InjectedFault:
    """An injected fault: begin (monotonic, s), type, target, and duration (s; 0: an instant)."""

    began: float
    kind: str
    target: str
    note: str = ""
    seconds: float = 0.0


@dataclass
class ChaosRun:
    """The targets of faults, and the faults injected so far.

    `tell` is called with a message for each fault. Setting `over` ends every wait.
    """

    fleet: Fleet
    ledger: Ledger
    app: App
    lease: float  # s
    over: threading.Event
    tell: Callable[[str], None]
    file: Path | None = None
    server: Any = None  # PrivateRedis, PrivateSentinels, PrivateCluster or SmallDisk, as the fault types need
    proxies: Proxies | None = None
    done: list[InjectedFault] = field(default_factory=list)
    #: Killed processes of workers without a supervisor.
    lone: set[int] = field(default_factory=set)
    #: When the store was available again after each outage (monotonic, s).
    store_returns: list[float] = field(default_factory=list)
    #: Spans (wall clock, ms) whose acknowledged writes the store may lose, by its own durability settings.
    forgiven: list[tuple[int, int]] = field(default_factory=list)
    #: Spans whose leases the store may lose, because SQLite does not sync them.
    unleased: list[tuple[int, int]] = field(default_factory=list)
    #: The shard of each queue, on a private cluster.
    shards_by_queue: Mapping[str, int] = field(default_factory=dict)
    #: Lost shards: when, and the queues of the other shards.
    lost_shards: list[LostShard] = field(default_factory=list)
    #: Held while this process uses the store, so that the file is closed during a power cut.
    using: threading.Lock = field(default_factory=threading.Lock)
    #: Spans whose writes a failover may lose, except enqueues, which waited for a replica.
    undone: list[tuple[int, int]] = field(default_factory=list)

    def enqueue(self, payload: bytes, task: str, **options: Any) -> str:
        try:
            with self.using:
                return self.app.enqueue_raw(options.pop("queue"), payload, task, **options).id
        except PenstockError:  # the store is away: the fault is retried later
            return ""

    def victim(self, members: list[Member], random_values: float) -> Member:
        alive = [member for member in members if member.alive]
        if not alive:
            raise NoVictim
        member = alive[int(random_values * len(alive))]
        member.faulted = True
        return member

    def kill(self, pid: int, kind: str, member: Member, note: str) -> None:
        self.record(kind, member.name, note)
        self.end([pid], kind)

    def end(self, pids: Sequence[int], kind: str) -> None:
        """Kill these processes. Stop them first, so that none starts a job after the fault is recorded."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                if number == signal.SIGKILL:
                    self.ledger.fault("kill", pid, kind)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def record(self, kind: str, target: str, note: str = "") -> None:
        self.tell(f"{kind}: {target}")
        self.done.append(InjectedFault(time.monotonic(), kind, target, note))

    @contextlib.contextmanager
    def fault_lasting(
        self, kind: str, target: str, note: str = "", queues: Sequence[str] = ()
    ) -> Iterator[None]:
        self.tell(f"{kind}: {target}")
        began = time.monotonic()
        affects_all = kind in _AFFECTS_ALL and not (kind in ("restart-store", "power-cut") and self.file)
        if affects_all:
            self.ledger.fault("store", 0, kind, queues=queues)
        try:
            yield
        finally:
            if affects_all:
                self.ledger.healed("store", 0)
            self.done.append(InjectedFault(began, kind, target, note, time.monotonic() - began))

    @contextlib.contextmanager
    def process_fault_lasting(
        self, kind: str, member: Member, note: str = "", *, effect: str = "stop"
    ) -> Iterator[None]:
        """Record a fault of one process that lasts as long as the block; `effect`: its kind in the ledger."""
        with self.fault_lasting(kind, member.name, note):
            self.ledger.fault(effect, member.pid, kind)
            try:
                yield
            finally:
                self.ledger.healed(effect, member.pid)

    def wait(self, seconds: float) -> None:
        self.over.wait(seconds)

    def wait_until_serving(self, member: Member) -> None:
        ends = time.monotonic() + 15.0
        while not member.is_serving and member.alive and time.monotonic() < ends and not self.over.is_set():
            time.sleep(0.05)


class NoVictim(Exception):
    """There is no target for this fault at the moment."""


def wall_ms() -> int:
    """The wall clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000
