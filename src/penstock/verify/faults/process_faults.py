"""Faults of processes: workers and producers are killed or stopped, or have a wrong clock or other code."""

from __future__ import annotations

import signal

from penstock.verify.faults.chaos_run import NO_PROCESS, ChaosRun
from penstock.verify.processes import session_processes

__all__ = ["ProcessFaults"]

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
        with (
            self._run.fault_lasting("stop-worker", member.name, lasting),
            self._run.process_fault_lasting("stop", member, "stop-worker"),
        ):
            member.signal_all(signal.SIGSTOP)
            self._run.wait(self._run.lease * (1.5 + how))
            member.signal_all(signal.SIGCONT)

    def kill_producer(self, who: float, *_: float) -> None:
        member = self._run.victim(self._run.fleet.producers, who)
        self._run.kill(member.pid, "kill-producer", member, f"process {member.pid}")

    def stop_producer(self, who: float, how: float, _: float) -> None:
        member = self._run.victim(self._run.fleet.producers, who)
        with (
            self._run.fault_lasting("stop-producer", member.name),
            self._run.process_fault_lasting("stop", member, "stop-producer"),
        ):
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
        with (
            self._run.fault_lasting("clock", guest.name, f"{ahead:+} s"),
            self._run.process_fault_lasting("clock", guest, "clock"),
        ):
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
