"""Faults of the store: its server, its file, its disk, and its connections."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.verify.faults.chaos_run import NO_PROCESS, ChaosRun, NoVictim, wall_ms
from penstock.verify.ledger.rules.recovery import LostShard
from penstock.verify.processes import session_processes
from penstock.verify.servers import disks

#: How long a shard stays away after the cluster has given up its slots (s), and a random extra time (s).
_LOST_FOR, _RANDOM_EXTRA = 4.0, 4.0
#: Upper bound of the replication lag: older acknowledged writes are on the replica (ms).
_REPLICATION_LAG = 2_000
#: Upper bound until a disconnected replica is synced again (ms): it notices within 5 s, then resyncs.
_RESYNC = 15_000
#: While a file sync is under way, Redis acknowledges writes and delays writing them, at most this long (ms).
_UNWRITTEN = 2_000


class StoreFaults:
    """Each method injects one fault; its parameters are random numbers (0 to 1) for the place and details."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run
        #: The masters and their epochs at the last check, and its time (wall clock, ms; 0: not yet).
        self._masters: Any = None
        self._looked = 0
        #: The last network fault (wall clock, ms): begin and end.
        self._cut = (0, 0)

    def restart_store(self, *_: float) -> None:
        if self._run.file is not None:
            self._kill_all("restart-store")
            return
        begins = wall_ms() - _UNWRITTEN
        with self._run.fault_lasting("restart-store", "server", "SIGKILL"), self._detecting_failover():
            back = time.monotonic() + self._run.server.restart()
        self._forgive_unsynced(begins)
        self._run.store_returns.append(back)

    def power_cut(self, *_: float) -> None:
        """Cut the power of the store. A server may lose what it had not synced, as `appendfsync` allows."""
        if self._run.file is not None:
            self._power_cut_file(self._run.file)
            return
        begins = wall_ms()
        with self._run.fault_lasting("power-cut", "server", f"appendfsync {self._run.server.fsync}"):
            self._run.server.power_cut()
        self._forgive_unsynced(begins)
        self._run.store_returns.append(time.monotonic())

    def _power_cut_file(self, file: Path) -> None:
        """Kill all processes at once, and drop what SQLite had not synced.

        Only leases may be lost: all other acknowledged writes are synced.
        """
        everybody = self._run.fault_lasting("power-cut", "all processes of the run")
        with everybody, self._run.using, self._run.fleet.without_starts() as living:
            self._run.app.close()  # now: the last close of a file writes the log into the database
            for member in self._run.fleet.all:
                member.faulted = True
            self._run.end(living(), "power-cut")
            ends = time.monotonic() + 10.0
            while living() and time.monotonic() < ends:  # a living process has the file open
                time.sleep(0.005)
            self._run.unleased.append((disks.cut_power(file), wall_ms()))
        self._run.store_returns.append(time.monotonic())

    def _forgive_unsynced(self, begins: int) -> None:
        """Allow the loss of unsynced writes since `begins`; with `appendfsync always` there are none."""
        if self._run.server.fsync != "always":
            self._run.forgiven.append((begins, wall_ms()))

    def _kill_all(self, kind: str) -> None:
        """Kill all processes of the run at once: a file has no server to restart.

        Other programs that use the file are not killed.
        """
        with self._run.fault_lasting(kind, "all processes of the run", "SIGKILL"):
            for member in self._run.fleet.all:
                member.faulted = True
                self._run.end(session_processes(member.pid), kind)
            self._run.app.close()
        self._run.store_returns.append(time.monotonic())

    def stop_store(self, how: float, which: float, _: float) -> None:
        seconds = 0.5 + 2.5 * how
        if self._run.file is not None:
            with self._run.fault_lasting("stop-store", "write lock"):
                self._lock_file(seconds)
            return
        with self._run.fault_lasting("stop-store", "server"), self._detecting_failover():
            self._run.server.stop_for(seconds, *self._shard(which))

    def _lock_file(self, seconds: float) -> None:
        """Hold the file's write lock, as another slow program would."""
        with contextlib.closing(
            sqlite3.connect(str(self._run.file), timeout=30.0, isolation_level=None)
        ) as cx:
            cx.execute("BEGIN IMMEDIATE")
            self._run.wait(seconds)
            cx.execute("ROLLBACK")

    def reset(self, *_: float) -> None:
        assert self._run.proxies is not None
        began = wall_ms()
        with self._run.fault_lasting("reset", "all connections"):
            self._run.proxies.reset()
        self._cut = began, wall_ms()

    def half_open(self, how: float, *_: float) -> None:
        assert self._run.proxies is not None
        began = wall_ms()
        with self._run.fault_lasting("half-open", "all connections"):
            self._run.proxies.half_open(1.0 + 4 * how)
        self._cut = began, wall_ms()

    def _synced_until(self) -> int:
        """The time (wall clock, ms) up to which replicas certainly have all writes of their masters.

        Replication runs through the proxies too, so a replica resyncs for a while after a network fault.
        """
        now, (began, ended) = wall_ms(), self._cut
        return (began if now - ended < _RESYNC else now) - _REPLICATION_LAG

    def latency(self, how: float, much: float, _: float) -> None:
        assert self._run.proxies is not None
        ms = 5 + 95 * much
        with self._run.fault_lasting("latency", "all connections", f"{ms:.0f} ms"):
            self._run.ledger.fault("task", NO_PROCESS, "latency")
            self._run.proxies.latency(ms, 2.0 + 3 * how)

    def script_flush(self, *_: float) -> None:
        self._run.record("script-flush", "server")
        self._run.ledger.fault("task", NO_PROCESS, "script-flush")
        self._run.server.flush_scripts()

    def failover(self, which: float, *_: float) -> None:
        with self._run.fault_lasting("failover", "a master"), self._detecting_failover():
            back = time.monotonic() + self._run.server.failover(*self._shard(which))
        self._run.store_returns.append(back)  # before the replicas were synced

    def lost_shard(self, which: float, how: float, _: float) -> None:
        """Stop a master and its replicas, and restart them with all their data; their queues wait."""
        (shard,) = self._shard(which)
        lost = [queue for queue, home in self._run.shards_by_queue.items() if home == shard]
        if not lost:
            raise NoVictim
        others = tuple(queue for queue, home in self._run.shards_by_queue.items() if home != shard)

        def while_lost() -> None:
            begins = wall_ms()
            if not self._run.over.wait(_LOST_FOR + _RANDOM_EXTRA * how):
                self._run.lost_shards.append(LostShard(begins, wall_ms(), others))

        self.detect_failovers()
        with self._run.fault_lasting("lost-shard", f"shard {shard}", ", ".join(lost), lost):
            self._run.server.lose(shard, while_lost)
        self.detect_failovers()

    def disk_full(self, how: float, which: float, _: float) -> None:
        with self._run.fault_lasting("disk-full", "the store's"), self._detecting_failover():
            self._run.server.fill_disk(1.0 + 2 * how, *self._shard(which))

    @contextlib.contextmanager
    def _detecting_failover(self) -> Iterator[None]:
        """Detect a failover in the block: a replica may replace a master that cannot answer or write."""
        self.detect_failovers()
        begins = self._synced_until()
        yield
        self.detect_failovers(begins)

    def detect_failovers(self, begins: int | None = None) -> None:
        """Record a failover since `begins` (default: since the last check), also an unplanned one.

        A failover may lose the outcomes of the last moments. Enqueues are safe: they waited for a replica.
        """
        find = getattr(self._run.server, "masters_and_epochs", None)
        masters = None if find is None else find()
        if masters != self._masters and self._looked:
            self._run.undone.append(
                (self._looked - _REPLICATION_LAG if begins is None else begins, wall_ms())
            )
        self._masters, self._looked = masters, wall_ms()

    def _shard(self, random_values: float) -> tuple[int, ...]:
        """The shard that is hit, as arguments: one on a cluster, none elsewhere."""
        shards: int = getattr(self._run.server, "shards", 0)
        return (int(random_values * shards),) if shards else ()
