"""Faults of the store: its server, its file, its disk, and the connections to it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.verify.faults.chaos_run import NOBODY, ChaosRun, NoVictim, wall
from penstock.verify.ledger.rules.lost_shards import LostShard
from penstock.verify.processes import family
from penstock.verify.servers import power

__all__ = ["StoreFaults"]

#: A lost shard is gone for so long once its slots are given up, and for so much longer by lot (s).
_LOST, _LONGER = 4.0, 4.0
#: What a master has answered and its replica does not have yet is at most so old (ms).
_ON_THE_WAY = 2_000
#: So long (ms) after its wire was cut a replica is in step again: it notices within 5 s, and reads all anew.
_OUT_OF_STEP = 15_000
#: While a sync is under way Redis answers, and keeps back what it is to write; that long at most (ms).
_KEPT_BACK = 2_000


class StoreFaults:
    """Each method is one fault, by numbers from 0 to 1 that say where and how."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run
        #: Who the masters were at the last look, and when that was (wall clock, ms; 0: not yet).
        self._reign: Any = None
        self._looked = 0
        #: When the connections were cut last (wall clock, ms), from and to.
        self._cut = (0, 0)

    def restart_store(self, *_: float) -> None:
        if self._run.file is not None:
            self._kill_all("restart-store")
            return
        assert self._run.server is not None
        begins = wall() - _KEPT_BACK
        with self._run.lasting("restart-store", "server", "SIGKILL"), self._perhaps_replaced():
            back = time.monotonic() + self._run.server.restart()
        self._forgive(begins)
        self._run.back.append(back)

    def power_cut(self, *_: float) -> None:
        """What the server had not synced it may lose, as `appendfsync` says: that much is forgiven."""
        if self._run.file is not None:
            self._cut_off_file(self._run.file)
            return
        assert self._run.server is not None
        begins = wall()
        with self._run.lasting("power-cut", "server", f"appendfsync {self._run.server.fsync}"):
            self._run.server.power_cut()
        self._forgive(begins)
        self._run.back.append(time.monotonic())

    def _cut_off_file(self, file: Path) -> None:
        """All die at once, and what SQLite was not told to sync is gone. That is leases, and nothing that was
        acknowledged to a producer or to the holder of a lease."""
        everybody = self._run.lasting("power-cut", "all processes of the run")
        with everybody, self._run.using, self._run.fleet.standstill() as living:
            self._run.app.close()  # the last one to close a file would write all of it into the database
            for member in self._run.fleet.all:
                member.harmed = True
            self._run.end(living(), "power-cut")
            ends = time.monotonic() + 10.0
            while living() and time.monotonic() < ends:  # until then they have the file open
                time.sleep(0.005)
            self._run.unleased.append((power.cut(file), wall()))
        self._run.back.append(time.monotonic())

    def _forgive(self, begins: int) -> None:
        """What was not synced when the server was killed; with `always` there is no such thing."""
        assert self._run.server is not None
        if self._run.server.fsync != "always":
            self._run.forgiven.append((begins, wall()))

    def _kill_all(self, kind: str) -> None:
        """A file has no server: all of the run who have it open die at once; the next finds what they left.
        Other programs that use the file are not ours to kill."""
        with self._run.lasting(kind, "all processes of the run", "SIGKILL"):
            for member in self._run.fleet.all:
                member.harmed = True
                self._run.end(family(member.pid), kind)
            self._run.app.close()
        self._run.back.append(time.monotonic())

    def stop_store(self, how: float, which: float, _: float) -> None:
        seconds = 0.5 + 2.5 * how
        if self._run.file is not None:
            with self._run.lasting("stop-store", "write lock"):
                self._hold_lock(seconds)
            return
        assert self._run.server is not None
        with self._run.lasting("stop-store", "server"), self._perhaps_replaced():
            self._run.server.stop_for(seconds, *self._shard(which))

    def _hold_lock(self, seconds: float) -> None:
        """As another program does that writes into the same file, and takes its time."""
        with contextlib.closing(
            sqlite3.connect(str(self._run.file), timeout=30.0, isolation_level=None)
        ) as cx:
            cx.execute("BEGIN IMMEDIATE")
            self._run.wait(seconds)
            cx.execute("ROLLBACK")

    def reset(self, *_: float) -> None:
        assert self._run.proxies is not None
        began = wall()
        with self._run.lasting("reset", "all connections"):
            self._run.proxies.reset()
        self._cut = began, wall()

    def half_open(self, how: float, *_: float) -> None:
        assert self._run.proxies is not None
        began = wall()
        with self._run.lasting("half-open", "all connections"):
            self._run.proxies.half_open(1.0 + 4 * how)
        self._cut = began, wall()

    def _in_step_until(self) -> int:
        """Since when (wall clock, ms) a replica need not have all that its master has: their wire goes
        through the relays too, and is made anew some time after it was cut."""
        now, (began, ended) = wall(), self._cut
        return (began if now - ended < _OUT_OF_STEP else now) - _ON_THE_WAY

    def latency(self, how: float, much: float, _: float) -> None:
        assert self._run.proxies is not None
        ms = 5 + 95 * much
        with self._run.lasting("latency", "all connections", f"{ms:.0f} ms"):
            self._run.ledger.fault("task", NOBODY, "latency")
            self._run.proxies.latency(ms, 2.0 + 3 * how)

    def script_flush(self, *_: float) -> None:
        assert self._run.server is not None
        self._run.note("script-flush", "server")
        self._run.ledger.fault("task", NOBODY, "script-flush")
        self._run.server.flush_scripts()

    def failover(self, which: float, *_: float) -> None:
        assert self._run.server is not None
        with self._run.lasting("failover", "a master"), self._perhaps_replaced():
            back = time.monotonic() + self._run.server.failover(*self._shard(which))
        self._run.back.append(back)  # its replicas may have taken longer to be in step

    def lost_shard(self, which: float, how: float, _: float) -> None:
        """A master is gone with its replicas, and comes back with all it had: its queues wait for it."""
        assert self._run.server is not None
        (shard,) = self._shard(which)
        lost = [queue for queue, home in self._run.homes.items() if home == shard]
        if not lost:
            raise NoVictim
        others = tuple(queue for queue, home in self._run.homes.items() if home != shard)

        def while_lost() -> None:
            begins = wall()
            if not self._run.over.wait(_LOST + _LONGER * how):
                self._run.lost_shards.append(LostShard(begins, wall(), others))

        self.look_for_failovers()
        with self._run.lasting("lost-shard", f"shard {shard}", ", ".join(lost), lost):
            self._run.server.lose(shard, while_lost)
        self.look_for_failovers()

    def disk_full(self, how: float, which: float, _: float) -> None:
        assert self._run.server is not None
        with self._run.lasting("disk-full", "the store's"), self._perhaps_replaced():
            self._run.server.fill_disk(1.0 + 2 * how, *self._shard(which))

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
        find = getattr(self._run.server, "reign", None)
        reign = None if find is None else find()
        if reign != self._reign and self._looked:
            self._run.undone.append((self._looked - _ON_THE_WAY if begins is None else begins, wall()))
        self._reign, self._looked = reign, wall()

    def _shard(self, luck: float) -> tuple[int, ...]:
        """Which part of a cluster is hit."""
        shards: int = getattr(self._run.server, "shards", 0)
        return (int(luck * shards),) if shards else ()
