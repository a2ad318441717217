"""Faults of tasks: tasks that raise, hang, block or crash their process, and jobs that no worker can run."""

from __future__ import annotations

from typing import Any

from penstock.verify.faults.chaos_run import NO_PROCESS, ChaosRun

__all__ = ["REPORTED_BY_TASKS", "TASKS", "UNKNOWN_TASK", "TaskFaults"]

TASKS = "penstock.verify.workload.tasks"
#: A task that no version of the code has.
UNKNOWN_TASK = "verify.unknown"
#: Fault types that the task itself records in the ledger when it runs.
REPORTED_BY_TASKS = {"raise", "hang", "block-loop", "eat-memory", "os-exit", "segfault"}


class TaskFaults:
    """Each method enqueues one job that causes a fault."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run

    def raise_(self, *_: float) -> None:
        self._task("raise", "raises", max_attempts=2)

    def hang(self, which: float, *_: float) -> None:
        name = ("hangs", "hangs_in_thread", "hangs_in_process")[int(which * 3)]
        self._task("hang", name, max_attempts=1, timeout="1s")

    def block_loop(self, how: float, *_: float) -> None:
        seconds = round(0.5 + 2 * how, 3)
        self._task("block-loop", "blocks_the_loop", b'{"seconds": %.3f}' % seconds, max_attempts=2)

    def eat_memory(self, *_: float) -> None:
        self._task("eat-memory", "eats_memory", max_attempts=1)

    def os_exit(self, which: float, *_: float) -> None:
        self._task("os-exit", "exits" if which < 0.4 else "exits_in_process", max_attempts=2)

    def segfault(self, *_: float) -> None:
        self._task("segfault", "segfaults", max_attempts=2)

    def unknown_task(self, *_: float) -> None:
        if self._run.enqueue(b"{}", UNKNOWN_TASK, queue="main"):
            self._run.ledger.fault("task", NO_PROCESS, "unknown-task")
            self._run.record("unknown-task", UNKNOWN_TASK)

    def poison_payload(self, which: float, *_: float) -> None:
        payload = (b"\xff\xfe\x00", b'{"n": "many"}', b"[" * 5_000)[int(which * 3)]
        if self._run.enqueue(payload, f"{TASKS}.quick", queue="main", max_attempts=3):
            self._run.ledger.fault("task", NO_PROCESS, "poison-payload")
            self._run.record("poison-payload", "quick", f"{payload[:16]!r}")

    def _task(self, kind: str, name: str, payload: bytes = b"{}", **options: Any) -> None:
        """Enqueue the job; its task records the fault in the ledger when it runs."""
        if self._run.enqueue(payload, f"{TASKS}.{name}", queue="harm", retry="200ms", **options):
            self._run.record(kind, name)
