"""Injects the planned faults, one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from penstock.verify.faults.act_faults import ActFaults
from penstock.verify.faults.chaos_run import ChaosRun, NoVictim
from penstock.verify.faults.plan import PlannedFault
from penstock.verify.faults.process_faults import ProcessFaults
from penstock.verify.faults.remote_faults import RemoteFaults
from penstock.verify.faults.store_faults import StoreFaults
from penstock.verify.faults.task_faults import TaskFaults

__all__ = ["FaultInjector"]


class FaultInjector:
    """Injects planned faults into the processes, the store and the tasks of a run, and does planned acts."""

    def __init__(self, run: ChaosRun) -> None:
        processes, self._store, tasks = ProcessFaults(run), StoreFaults(run), TaskFaults(run)
        self._acts: dict[str, Callable[[float, float, float], None]] = {
            "kill-worker": processes.kill_worker,
            "stop-worker": processes.stop_worker,
            "kill-producer": processes.kill_producer,
            "stop-producer": processes.stop_producer,
            "storm": processes.storm,
            "clock": processes.clock,
            "two-versions": processes.two_versions,
            "restart-store": self._store.restart_store,
            "power-cut": self._store.power_cut,
            "stop-store": self._store.stop_store,
            "reset": self._store.reset,
            "half-open": self._store.half_open,
            "latency": self._store.latency,
            "script-flush": self._store.script_flush,
            "failover": self._store.failover,
            "lost-shard": self._store.lost_shard,
            "disk-full": self._store.disk_full,
            "raise": tasks.raise_,
            "hang": tasks.hang,
            "block-loop": tasks.block_loop,
            "eat-memory": tasks.eat_memory,
            "os-exit": tasks.os_exit,
            "segfault": tasks.segfault,
            "unknown-task": tasks.unknown_task,
            "poison-payload": tasks.poison_payload,
            **ActFaults(run).by_kind(),
            **RemoteFaults(run).by_kind(),
        }

    @property
    def kinds(self) -> set[str]:
        """The names of all fault types that it can inject."""
        return set(self._acts)

    def inject(self, step: PlannedFault) -> None:
        """Inject this fault. A fault without a victim (e.g. one that has just died) is not counted."""
        with contextlib.suppress(NoVictim):
            self._acts[step.kind](*step.random_values)

    def detect_failovers(self) -> None:
        """Record a failover that this run did not cause."""
        self._store.detect_failovers()
