"""Faults of processes: workers and producers are killed, stopped, or of another time or version."""

from __future__ import annotations

import signal

from penstock.verify.faults.chaos_run import NOBODY, ChaosRun
from penstock.verify.processes import family

__all__ = ["ProcessFaults"]

_HOUR = 3_600


class ProcessFaults:
    """Each method is one fault, by numbers from 0 to 1 that say to whom and how."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run

    def kill_worker(self, who: float, which: float, _: float) -> None:
        member = self._run.victim(self._run.fleet.workers, who)
        family = [member.pid, *member.children]
        # of a supervisor and two children each is hit as often as a lone worker
        pid = family[int(which * len(family))]
        what = "supervisor " if len(family) > 1 and pid == member.pid else "process "
        if member.role == "lone":
            self._run.lone.add(pid)
        self._run.kill(pid, "kill-worker", member, f"{what}{pid}")

    def stop_worker(self, who: float, how: float, _: float) -> None:
        """Longer than a lease, so that others take its work; then it goes on and finds out."""
        member = self._run.victim(self._run.fleet.workers, who)
        lasting = f"{self._run.lease:.0f} s lease"
        with (
            self._run.lasting("stop-worker", member.name, lasting),
            self._run.hurting("stop", member, "stop-worker"),
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
            self._run.lasting("stop-producer", member.name),
            self._run.hurting("stop", member, "stop-producer"),
        ):
            member.signal_all(signal.SIGSTOP)
            self._run.wait(0.5 + 2 * how)
            member.signal_all(signal.SIGCONT)

    def storm(self, how: float, when: float, _: float) -> None:
        """Four workers come and go, the second and fourth by SIGKILL, some before they have begun."""
        with self._run.lasting("storm", "4 workers"):
            for i in range(4):
                guest = self._run.fleet.guest("lone" if (i + (how > 0.5)) % 2 else "supervised")
                self._run.wait(0.3 + 1.2 * ((when + i / 4) % 1.0))
                if i % 2:
                    self._run.end(family(guest.pid), "storm")
                else:
                    guest.signal(signal.SIGTERM)

    def clock(self, way: float, how: float, _: float) -> None:
        ahead = _HOUR if way < 0.5 else -_HOUR
        guest = self._run.fleet.guest("lone", ahead=ahead)
        with (
            self._run.lasting("clock", guest.name, f"{ahead:+} s"),
            self._run.hurting("clock", guest, "clock"),
        ):
            self._run.until_serves(guest)
            self._run.wait(2.0 + 3 * how)
            guest.signal(signal.SIGTERM)

    def two_versions(self, how: float, *more: float) -> None:
        """Old and new tasks are asked of a fleet in which some know the ones, and some the others."""
        guest = self._run.fleet.guest("supervised" if how < 0.5 else "lone", version="2")
        with self._run.lasting("two-versions", guest.name, "1 and 2"):
            self._run.ledger.fault("task", NOBODY, "two-versions")
            for _ in range(3):
                for name in ("only-in-one", "old-name", "new-name"):
                    self._run.enqueue(b"{}", f"verify.{name}", queue="main", max_attempts=20)
                self._run.wait(0.2)
            self._run.until_serves(guest)
            self._run.wait(1.0 + how)
            guest.signal(signal.SIGTERM)
