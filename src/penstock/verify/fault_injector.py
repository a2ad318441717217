"""Does the harm that was drawn, one kind at a time, and keeps account of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.core.errors import PenstockError
from penstock.verify.environment import Wires
from penstock.verify.fleet import Fleet, Member
from penstock.verify.ledger import Ledger
from penstock.verify.ledger.parted import Parted
from penstock.verify.plan import Step
from penstock.verify.processes import family
from penstock.verify.servers import power

__all__ = ["STRANGER", "TASKS", "TOLD_BY_TASKS", "Done", "Harm"]

TASKS = "penstock.verify.tasks"
#: A task that no version of the code has.
STRANGER = "verify.nobody-knows-it"
#: What is asked for here, and written down by the task itself when it is done.
TOLD_BY_TASKS = {"raise", "hang", "block-loop", "eat-memory", "os-exit", "segfault"}
#: No process has it: harm that costs nobody an attempt.
NOBODY = -1
_HOUR = 3_600
#: While these last, anybody's lease may run out; with a lost shard that of a job in its queues.
_EVERYBODY = {
    *("restart-store", "power-cut", "stop-store", "reset", "half-open", "failover", "lost-shard", "disk-full")
}
#: A lost shard is gone for so long once its slots are given up, and for so much longer by lot (s).
_LOST, _LONGER = 4.0, 4.0
#: What a master has answered and its replica does not have yet is at most so old (ms).
_ON_THE_WAY = 2_000
#: So long (ms) after its wire was cut a replica is in step again: it notices within 5 s, and reads all anew.
_OUT_OF_STEP = 15_000
#: While a sync is under way Redis answers, and keeps back what it is to write; that long at most (ms).
_KEPT_BACK = 2_000


@dataclass(frozen=True)
class Done:
    """One act: when it began (monotonic, s), what was done to whom, how long it lasted (0: an instant)."""

    began: float
    kind: str
    target: str
    note: str = ""
    seconds: float = 0.0


@dataclass
class Harm:
    """Whoever does it. `tell` hears of each act; `over` ends every wait at once."""

    fleet: Fleet
    ledger: Ledger
    app: App
    lease: float  # s
    over: threading.Event
    tell: Callable[[str], None]
    file: Path | None = None
    server: Any = None  # PrivateRedis, PrivateSentinels, PrivateCluster or SmallDisk: whatever its kinds need
    wire: Wires | None = None
    done: list[Done] = field(default_factory=list)
    #: Who the masters were at the last look, and when that was (wall clock, ms; 0: nobody has looked yet).
    _reign: Any = None
    _looked: int = 0
    #: When the wires were cut last (wall clock, ms), from and to.
    _cut: tuple[int, int] = (0, 0)
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
    parted: list[Parted] = field(default_factory=list)
    #: Whoever uses the store here holds it, so that nobody has the file open when its machine goes dark.
    _using: threading.Lock = field(default_factory=threading.Lock)
    #: The same, but for enqueues, which had waited for a replica.
    undone: list[tuple[int, int]] = field(default_factory=list)

    def do(self, step: Step) -> None:
        """The harm of this step; one that finds no victim (it has just died of another) is not counted."""
        act = getattr(self, "_" + step.kind.replace("-", "_"))
        with contextlib.suppress(_NoVictim):
            act(*step.luck)

    # ── processes ────────────────────────────────────────────────────────────────────────────────

    def _kill_worker(self, who: float, which: float, _: float) -> None:
        member = self._victim(self.fleet.workers, who)
        family = [member.pid, *member.children]
        # of a supervisor and two children each is hit as often as a lone worker
        pid = family[int(which * len(family))]
        what = "supervisor " if len(family) > 1 and pid == member.pid else "process "
        if member.role == "lone":
            self.lone.add(pid)
        self._kill(pid, "kill-worker", member, f"{what}{pid}")

    def _stop_worker(self, who: float, how: float, _: float) -> None:
        """Longer than a lease, so that others take its work; then it goes on and finds out."""
        member = self._victim(self.fleet.workers, who)
        lasting = f"{self.lease:.0f} s lease"
        with self._lasting("stop-worker", member.name, lasting), self._hurting("stop", member, "stop-worker"):
            member.signal_all(signal.SIGSTOP)
            self._wait(self.lease * (1.5 + how))
            member.signal_all(signal.SIGCONT)

    def _kill_producer(self, who: float, *_: float) -> None:
        member = self._victim(self.fleet.producers, who)
        self._kill(member.pid, "kill-producer", member, f"process {member.pid}")

    def _stop_producer(self, who: float, how: float, _: float) -> None:
        member = self._victim(self.fleet.producers, who)
        with self._lasting("stop-producer", member.name), self._hurting("stop", member, "stop-producer"):
            member.signal_all(signal.SIGSTOP)
            self._wait(0.5 + 2 * how)
            member.signal_all(signal.SIGCONT)

    def _storm(self, how: float, when: float, _: float) -> None:
        """Four workers come and go, the second and fourth by SIGKILL, some before they have begun."""
        with self._lasting("storm", "4 workers"):
            for i in range(4):
                guest = self.fleet.guest("lone" if (i + (how > 0.5)) % 2 else "supervised")
                self._wait(0.3 + 1.2 * ((when + i / 4) % 1.0))
                if i % 2:
                    self._end(family(guest.pid), "storm")
                else:
                    guest.signal(signal.SIGTERM)

    def _clock(self, way: float, how: float, _: float) -> None:
        ahead = _HOUR if way < 0.5 else -_HOUR
        guest = self.fleet.guest("lone", ahead=ahead)
        with self._lasting("clock", guest.name, f"{ahead:+} s"), self._hurting("clock", guest, "clock"):
            self._until_serves(guest)
            self._wait(2.0 + 3 * how)
            guest.signal(signal.SIGTERM)

    def _two_versions(self, how: float, *more: float) -> None:
        """Old and new tasks are asked of a fleet in which some know the ones, and some the others."""
        guest = self.fleet.guest("supervised" if how < 0.5 else "lone", version="2")
        with self._lasting("two-versions", guest.name, "1 and 2"):
            self.ledger.fault("task", NOBODY, "two-versions")
            for _ in range(3):
                for name in ("only-in-one", "old-name", "new-name"):
                    self._enqueue(b"{}", f"verify.{name}", queue="main", max_attempts=20)
                self._wait(0.2)
            self._until_serves(guest)
            self._wait(1.0 + how)
            guest.signal(signal.SIGTERM)

    # ── the store ────────────────────────────────────────────────────────────────────────────────

    def _restart_store(self, *_: float) -> None:
        if self.file is not None:
            self._kill_all("restart-store")
            return
        assert self.server is not None
        begins = _wall() - _KEPT_BACK
        with self._lasting("restart-store", "server", "SIGKILL"), self._perhaps_replaced():
            back = time.monotonic() + self.server.restart()
        self._forgive(begins)
        self.back.append(back)

    def _power_cut(self, *_: float) -> None:
        """What the server had not synced it may lose, as `appendfsync` says: that much is forgiven."""
        if self.file is not None:
            self._cut_off_file(self.file)
            return
        assert self.server is not None
        begins = _wall()
        with self._lasting("power-cut", "server", f"appendfsync {self.server.fsync}"):
            self.server.power_cut()
        self._forgive(begins)
        self.back.append(time.monotonic())

    def _cut_off_file(self, file: Path) -> None:
        """All die at once, and what SQLite was not told to sync is gone. That is leases, and nothing that was
        acknowledged to a producer or to the holder of a lease."""
        everybody = self._lasting("power-cut", "all processes of the run")
        with everybody, self._using, self.fleet.standstill() as living:
            self.app.close()  # the last one to close a file would write all of it into the database
            for member in self.fleet.all:
                member.harmed = True
            self._end(living(), "power-cut")
            ends = time.monotonic() + 10.0
            while living() and time.monotonic() < ends:  # until then they have the file open
                time.sleep(0.005)
            self.unleased.append((power.cut(file), _wall()))
        self.back.append(time.monotonic())

    def _forgive(self, begins: int) -> None:
        """What was not synced when the server was killed; with `always` there is no such thing."""
        assert self.server is not None
        if self.server.fsync != "always":
            self.forgiven.append((begins, _wall()))

    def _kill_all(self, kind: str) -> None:
        """A file has no server: all of the run who have it open die at once; the next finds what they left.
        Other programs that use the file are not ours to kill."""
        with self._lasting(kind, "all processes of the run", "SIGKILL"):
            for member in self.fleet.all:
                member.harmed = True
                self._end(family(member.pid), kind)
            self.app.close()
        self.back.append(time.monotonic())

    def _stop_store(self, how: float, which: float, _: float) -> None:
        seconds = 0.5 + 2.5 * how
        if self.file is not None:
            with self._lasting("stop-store", "write lock"):
                self._hold_lock(seconds)
            return
        assert self.server is not None
        with self._lasting("stop-store", "server"), self._perhaps_replaced():
            self.server.stop_for(seconds, *self._shard(which))

    def _hold_lock(self, seconds: float) -> None:
        """As another program does that writes into the same file, and takes its time."""
        with contextlib.closing(sqlite3.connect(str(self.file), timeout=30.0, isolation_level=None)) as cx:
            cx.execute("BEGIN IMMEDIATE")
            self._wait(seconds)
            cx.execute("ROLLBACK")

    def _reset(self, *_: float) -> None:
        assert self.wire is not None
        began = _wall()
        with self._lasting("reset", "all connections"):
            self.wire.reset()
        self._cut = began, _wall()

    def _half_open(self, how: float, *_: float) -> None:
        assert self.wire is not None
        began = _wall()
        with self._lasting("half-open", "all connections"):
            self.wire.half_open(1.0 + 4 * how)
        self._cut = began, _wall()

    def _in_step_until(self) -> int:
        """Since when (wall clock, ms) a replica need not have all that its master has: their wire goes
        through the relays too, and is made anew some time after it was cut."""
        now, (began, ended) = _wall(), self._cut
        return (began if now - ended < _OUT_OF_STEP else now) - _ON_THE_WAY

    def _latency(self, how: float, much: float, _: float) -> None:
        assert self.wire is not None
        ms = 5 + 95 * much
        with self._lasting("latency", "all connections", f"{ms:.0f} ms"):
            self.ledger.fault("task", NOBODY, "latency")
            self.wire.latency(ms, 2.0 + 3 * how)

    def _script_flush(self, *_: float) -> None:
        assert self.server is not None
        self._note("script-flush", "server")
        self.ledger.fault("task", NOBODY, "script-flush")
        self.server.flush_scripts()

    def _failover(self, which: float, *_: float) -> None:
        assert self.server is not None
        with self._lasting("failover", "a master"), self._perhaps_replaced():
            back = time.monotonic() + self.server.failover(*self._shard(which))
        self.back.append(back)  # its replicas may have taken longer to be in step

    def _lost_shard(self, which: float, how: float, _: float) -> None:
        """A master is gone with its replicas, and comes back with all it had: its queues wait for it."""
        assert self.server is not None
        (shard,) = self._shard(which)
        lost = [queue for queue, home in self.homes.items() if home == shard]
        if not lost:
            raise _NoVictim
        others = tuple(queue for queue, home in self.homes.items() if home != shard)

        def while_lost() -> None:
            begins = _wall()
            if not self.over.wait(_LOST + _LONGER * how):
                self.parted.append(Parted(begins, _wall(), others))

        self.look_for_failovers()
        with self._lasting("lost-shard", f"shard {shard}", ", ".join(lost), lost):
            self.server.lose(shard, while_lost)
        self.look_for_failovers()

    def _disk_full(self, how: float, which: float, _: float) -> None:
        assert self.server is not None
        with self._lasting("disk-full", "the store's"), self._perhaps_replaced():
            self.server.fill_disk(1.0 + 2 * how, *self._shard(which))

    @contextlib.contextmanager
    def _perhaps_replaced(self) -> Iterator[None]:
        """A replica may take the place of a master that does not answer, or cannot write."""
        self.look_for_failovers()
        begins = self._in_step_until()
        yield
        self.look_for_failovers(begins)

    def look_for_failovers(self, begins: int | None = None) -> None:
        """Whether there was one since then, or since the last look; also one that nobody asked for. Enqueues
        waited for a replica; outcomes did not, and those of the last moments may be undone."""
        find = getattr(self.server, "reign", None)
        reign = None if find is None else find()
        if reign != self._reign and self._looked:
            self.undone.append((self._looked - _ON_THE_WAY if begins is None else begins, _wall()))
        self._reign, self._looked = reign, _wall()

    def _shard(self, luck: float) -> tuple[int, ...]:
        """Which part of a cluster is hit."""
        shards: int = getattr(self.server, "shards", 0)
        return (int(luck * shards),) if shards else ()

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────

    def _raise(self, *_: float) -> None:
        self._task("raise", "raises", max_attempts=2)

    def _hang(self, which: float, *_: float) -> None:
        name = ("hangs", "hangs_in_thread", "hangs_in_process")[int(which * 3)]
        self._task("hang", name, max_attempts=1, timeout="1s")

    def _block_loop(self, how: float, *_: float) -> None:
        seconds = round(0.5 + 2 * how, 3)
        self._task("block-loop", "blocks_the_loop", b'{"seconds": %.3f}' % seconds, max_attempts=2)

    def _eat_memory(self, *_: float) -> None:
        self._task("eat-memory", "eats_memory", max_attempts=1)

    def _os_exit(self, which: float, *_: float) -> None:
        self._task("os-exit", "exits" if which < 0.4 else "exits_in_process", max_attempts=2)

    def _segfault(self, *_: float) -> None:
        self._task("segfault", "segfaults", max_attempts=2)

    def _unknown_task(self, *_: float) -> None:
        if self._enqueue(b"{}", STRANGER, queue="main"):
            self.ledger.fault("task", NOBODY, "unknown-task")
            self._note("unknown-task", STRANGER)

    def _poison_payload(self, which: float, *_: float) -> None:
        payload = (b"\xff\xfe\x00", b'{"n": "many"}', b"[" * 5_000)[int(which * 3)]
        if self._enqueue(payload, f"{TASKS}.quick", queue="main", max_attempts=3):
            self.ledger.fault("task", NOBODY, "poison-payload")
            self._note("poison-payload", "quick", f"{payload[:16]!r}")

    def _task(self, kind: str, name: str, payload: bytes = b"{}", **options: Any) -> None:
        """Ask for it; the task writes it down when it does it, and is in no hurry."""
        if self._enqueue(payload, f"{TASKS}.{name}", queue="harm", retry="200ms", **options):
            self._note(kind, name)

    def _enqueue(self, payload: bytes, task: str, **options: Any) -> str:
        try:
            with self._using:
                return self.app.enqueue_raw(options.pop("queue"), payload, task, **options).id
        except PenstockError:  # the store is away: another time
            return ""

    # ── the account ──────────────────────────────────────────────────────────────────────────────

    def _victim(self, members: list[Member], luck: float) -> Member:
        alive = [member for member in members if member.alive]
        if not alive:
            raise _NoVictim
        member = alive[int(luck * len(alive))]
        member.harmed = True
        return member

    def _kill(self, pid: int, kind: str, member: Member, note: str) -> None:
        self._note(kind, member.name, note)
        self._end([pid], kind)

    def _end(self, pids: Sequence[int], kind: str) -> None:
        """Stopped first, so that none begins anything between the writing down and the end."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                if number == signal.SIGKILL:
                    self.ledger.fault("kill", pid, kind)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _note(self, kind: str, target: str, note: str = "") -> None:
        self.tell(f"{kind}: {target}")
        self.done.append(Done(time.monotonic(), kind, target, note))

    @contextlib.contextmanager
    def _lasting(self, kind: str, target: str, note: str = "", queues: Sequence[str] = ()) -> Iterator[None]:
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
            self.done.append(Done(began, kind, target, note, time.monotonic() - began))

    @contextlib.contextmanager
    def _hurting(self, kind: str, member: Member, cause: str) -> Iterator[None]:
        """One process suffers for so long."""
        self.ledger.fault(kind, member.pid, cause)
        try:
            yield
        finally:
            self.ledger.healed(kind, member.pid)

    def _wait(self, seconds: float) -> None:
        self.over.wait(seconds)

    def _until_serves(self, member: Member) -> None:
        ends = time.monotonic() + 15.0
        while not member.serves and member.alive and time.monotonic() < ends and not self.over.is_set():
            time.sleep(0.05)


def _wall() -> int:
    return time.time_ns() // 1_000_000


class _NoVictim(Exception):
    """There is nobody at this moment to whom it could be done."""
