"""A run under faults: its processes, its store, and the account of what was done to them."""

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
from penstock.verify.ledger.rules.lost_shards import LostShard

__all__ = ["NOBODY", "ChaosRun", "InjectedFault", "NoVictim", "wall"]

#: No process has it: harm that costs nobody an attempt.
NOBODY = -1
#: While these last, anybody's lease may run out; with a lost shard that of a job in its queues.
_EVERYBODY = {
    *("restart-store", "power-cut", "stop-store", "reset", "half-open", "failover", "lost-shard", "disk-full")
}


@dataclass(frozen=True)
class InjectedFault:
    """One act: when it began (monotonic, s), what was done to whom, how long it lasted (0: an instant)."""

    began: float
    kind: str
    target: str
    note: str = ""
    seconds: float = 0.0


@dataclass
class ChaosRun:
    """What faults act on, and what they have done. `tell` is called with each act; `over` ends every wait."""

    fleet: Fleet
    ledger: Ledger
    app: App
    lease: float  # s
    over: threading.Event
    tell: Callable[[str], None]
    file: Path | None = None
    server: Any = None  # PrivateRedis, PrivateSentinels, PrivateCluster or SmallDisk: whatever its kinds need
    proxies: Proxies | None = None
    done: list[InjectedFault] = field(default_factory=list)
    #: The processes of workers without a supervisor that were killed.
    lone: set[int] = field(default_factory=set)
    #: When the store was there again (monotonic, s), after each time that it was away.
    back: list[float] = field(default_factory=list)
    #: Wall clock (ms) from and to: what a store acknowledged then it may lose, by its own settings.
    forgiven: list[tuple[int, int]] = field(default_factory=list)
    #: What was leased then, and not synced, it may forget.
    unleased: list[tuple[int, int]] = field(default_factory=list)
    #: On a Cluster of ours the shard of each queue.
    homes: Mapping[str, int] = field(default_factory=dict)
    #: When a shard was lost, and the queues of the others.
    lost_shards: list[LostShard] = field(default_factory=list)
    #: Whoever uses the store here holds it, so that nobody has the file open when its machine goes dark.
    using: threading.Lock = field(default_factory=threading.Lock)
    #: The same, but for enqueues, which had waited for a replica.
    undone: list[tuple[int, int]] = field(default_factory=list)

    def enqueue(self, payload: bytes, task: str, **options: Any) -> str:
        try:
            with self.using:
                return self.app.enqueue_raw(options.pop("queue"), payload, task, **options).id
        except PenstockError:  # the store is away: another time
            return ""

    def victim(self, members: list[Member], luck: float) -> Member:
        alive = [member for member in members if member.alive]
        if not alive:
            raise NoVictim
        member = alive[int(luck * len(alive))]
        member.harmed = True
        return member

    def kill(self, pid: int, kind: str, member: Member, note: str) -> None:
        self.note(kind, member.name, note)
        self.end([pid], kind)

    def end(self, pids: Sequence[int], kind: str) -> None:
        """Stopped first, so that none begins anything between the writing down and the end."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                if number == signal.SIGKILL:
                    self.ledger.fault("kill", pid, kind)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def note(self, kind: str, target: str, note: str = "") -> None:
        self.tell(f"{kind}: {target}")
        self.done.append(InjectedFault(time.monotonic(), kind, target, note))

    @contextlib.contextmanager
    def lasting(self, kind: str, target: str, note: str = "", queues: Sequence[str] = ()) -> Iterator[None]:
        self.tell(f"{kind}: {target}")
        began = time.monotonic()
        everybodys = kind in _EVERYBODY and not (kind in ("restart-store", "power-cut") and self.file)
        if everybodys:
            self.ledger.fault("store", 0, kind, queues=queues)
        try:
            yield
        finally:
            if everybodys:
                self.ledger.healed("store", 0)
            self.done.append(InjectedFault(began, kind, target, note, time.monotonic() - began))

    @contextlib.contextmanager
    def hurting(self, kind: str, member: Member, cause: str) -> Iterator[None]:
        """One process suffers for so long."""
        self.ledger.fault(kind, member.pid, cause)
        try:
            yield
        finally:
            self.ledger.healed(kind, member.pid)

    def wait(self, seconds: float) -> None:
        self.over.wait(seconds)

    def until_serves(self, member: Member) -> None:
        ends = time.monotonic() + 15.0
        while not member.serves and member.alive and time.monotonic() < ends and not self.over.is_set():
            time.sleep(0.05)


class NoVictim(Exception):
    """There is nobody at this moment to whom it could be done."""


def wall() -> int:
    """The wall clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000
