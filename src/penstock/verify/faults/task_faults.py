"""Faults of tasks: they raise, hang, block, or crash their process; or nobody can run them."""

from __future__ import annotations

from typing import Any

from penstock.verify.faults.chaos_run import NOBODY, ChaosRun

__all__ = ["TASKS", "TOLD_BY_TASKS", "UNKNOWN_TASK", "TaskFaults"]

TASKS = "penstock.verify.workload.tasks"
#: A task that no version of the code has.
UNKNOWN_TASK = "verify.nobody-knows-it"
#: What is asked for here, and written down by the task itself when it is done.
TOLD_BY_TASKS = {"raise", "hang", "block-loop", "eat-memory", "os-exit", "segfault"}


class TaskFaults:
    """Each method enqueues one job that does harm."""

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
            self._run.ledger.fault("task", NOBODY, "unknown-task")
            self._run.note("unknown-task", UNKNOWN_TASK)

    def poison_payload(self, which: float, *_: float) -> None:
        payload = (b"\xff\xfe\x00", b'{"n": "many"}', b"[" * 5_000)[int(which * 3)]
        if self._run.enqueue(payload, f"{TASKS}.quick", queue="main", max_attempts=3):
            self._run.ledger.fault("task", NOBODY, "poison-payload")
            self._run.note("poison-payload", "quick", f"{payload[:16]!r}")

    def _task(self, kind: str, name: str, payload: bytes = b"{}", **options: Any) -> None:
        """Ask for it; the task writes it down when it does it, and is in no hurry."""
        if self._run.enqueue(payload, f"{TASKS}.{name}", queue="harm", retry="200ms", **options):
            self._run.note(kind, name)
