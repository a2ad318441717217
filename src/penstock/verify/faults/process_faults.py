"""Faults of processes: workers and producers are killed or stopped, have a wrong clock or other code; and
workers are stopped by commands in the store.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial

from penstock.core.errors import PenstockError
from penstock.inspector.inspector import Inspector
from penstock.stores.contract import WorkerInfo
from penstock.stores.worker_commands import WorkerAct
from penstock.verify.faults.chaos_run import NO_PROCESS, ChaosRun, NoVictim
from penstock.verify.fleet import Member
from penstock.verify.processes import session_processes

# ── signals, clocks and versions ─────────────────────────────────────────────────────────────────


_HOUR = 3_600


class ProcessFaults:
    """Each method injects one fault; its parameters are random numbers (0 to 1) for target and details."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run

    def kill_worker(self, who: float, which: float, _: float) -> None:
        member = self._run.victim(self._run.fleet.workers, who)
        family = [member.pid, *member.children]
        # a supervisor and its two children are each chosen with the same probability
        pid = family[int(which * len(family))]
        what = "supervisor " if len(family) > 1 and pid == member.pid else "process "
        if member.role == "lone":
            self._run.lone.add(pid)
        self._run.kill(pid, "kill-worker", member, f"{what}{pid}")

    def stop_worker(self, who: float, how: float, _: float) -> None:
        """Stop a worker for longer than its leases, so that others reclaim its jobs; then resume it."""
        member = self._run.victim(self._run.fleet.workers, who)
        lasting = f"{self._run.lease:.0f} s lease"
        with self._run.process_fault_lasting("stop-worker", member, lasting):
            member.signal_all(signal.SIGSTOP)
            self._run.wait(self._run.lease * (1.5 + how))
            member.signal_all(signal.SIGCONT)

    def kill_producer(self, who: float, *_: float) -> None:
        member = self._run.victim(self._run.fleet.producers, who)
        self._run.kill(member.pid, "kill-producer", member, f"process {member.pid}")

    def stop_producer(self, who: float, how: float, _: float) -> None:
        member = self._run.victim(self._run.fleet.producers, who)
        with self._run.process_fault_lasting("stop-producer", member):
            member.signal_all(signal.SIGSTOP)
            self._run.wait(0.5 + 2 * how)
            member.signal_all(signal.SIGCONT)

    def storm(self, how: float, when: float, _: float) -> None:
        """Start four workers and end them within seconds, two by SIGTERM and two by SIGKILL."""
        with self._run.fault_lasting("storm", "4 workers"):
            for i in range(4):
                guest = self._run.fleet.add_temporary("lone" if (i + (how > 0.5)) % 2 else "supervised")
                self._run.wait(0.3 + 1.2 * ((when + i / 4) % 1.0))
                if i % 2:
                    self._run.end(session_processes(guest.pid), "storm")
                else:
                    guest.signal(signal.SIGTERM)

    def clock(self, way: float, how: float, _: float) -> None:
        ahead = _HOUR if way < 0.5 else -_HOUR
        guest = self._run.fleet.add_temporary("lone", ahead=ahead)
        with self._run.process_fault_lasting("clock", guest, f"{ahead:+} s", effect="clock"):
            self._run.wait_until_serving(guest)
            self._run.wait(2.0 + 3 * how)
            guest.signal(signal.SIGTERM)

    def two_versions(self, how: float, *more: float) -> None:
        """Add a worker with newer code, and enqueue jobs of tasks that only one of the versions has."""
        guest = self._run.fleet.add_temporary("supervised" if how < 0.5 else "lone", version="2")
        with self._run.fault_lasting("two-versions", guest.name, "1 and 2"):
            self._run.ledger.fault("task", NO_PROCESS, "two-versions")
            for _ in range(3):
                for name in ("only-in-one", "old-name", "new-name"):
                    self._run.enqueue(b"{}", f"verify.{name}", queue="main", max_attempts=20)
                self._run.wait(0.2)
            self._run.wait_until_serving(guest)
            self._run.wait(1.0 + how)
            guest.signal(signal.SIGTERM)

    def rename(self, how: float, *_: float) -> None:
        """Run a release that has renamed tasks beside the old one: both enqueue and run the same calls."""
        worker = self._run.fleet.add_temporary("supervised" if how < 0.5 else "lone", version="2")
        producer = self._run.fleet.add_temporary("producer", version="2")
        with self._run.fault_lasting("rename", worker.name, f"and {producer.name}"):
            self._run.ledger.fault("task", NO_PROCESS, "rename")
            self._run.wait_until_serving(worker)
            self._run.wait(3.0 + 3 * how)
            producer.signal(signal.SIGTERM)
            worker.signal(signal.SIGTERM)


# ── remote stops ─────────────────────────────────────────────────────────────────────────────────


#: What workers are told, by the name of the fault.
REMOTE = {
    "remote-quiet": WorkerAct.QUIET,
    "remote-drain": WorkerAct.DRAIN,
    "remote-stop": WorkerAct.STOP,
    "remote-restart": WorkerAct.RESTART,
}
#: How long the reply of a worker is waited for (s), which may be killed or stopped meanwhile.
_REPLY = 2.0


class RemoteFaults:
    """Tells one worker of the run something; the run replaces workers that have ended."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run

    def by_kind(self) -> dict[str, Callable[[float, float, float], None]]:
        """What can be done, by the names of the faults."""
        return {kind: partial(self.tell, kind) for kind in REMOTE}

    def tell(self, kind: str, who: float, how: float, _: float) -> None:
        act = REMOTE[kind]
        try:
            with self._run.using:
                member, info = asyncio.run(self._tell(kind, act, who))
        except PenstockError as error:  # the store is away: the fault is retried later
            raise NoVictim from error
        self._run.record(kind, member.name, f"process {info.pid}")
        if act is WorkerAct.QUIET:
            self._run.wait(0.5 + 2 * how)
            # a quiet worker fetches no more jobs: another one must take its place
            member.signal(signal.SIGTERM)

    async def _tell(self, kind: str, act: WorkerAct, who: float) -> tuple[Member, WorkerInfo]:
        store = self._run.app.store
        by_pid = {member.pid: member for member in self._run.fleet.workers if member.alive}
        found = [
            (by_pid[pid], info)
            for info in await store.workers()
            for pid in [info.supervisor or info.pid]
            if pid in by_pid and (act is not WorkerAct.RESTART or info.supervisor is not None)
        ]
        if not found:
            raise NoVictim
        member, info = found[int(who * len(found))]
        member.faulted = True
        self._run.ledger.fault("act", NO_PROCESS, kind)
        await Inspector(store).tell_workers([info.id], act.value, by="verify", timeout=_REPLY)
        return member, info
