"""The process tasks of `benchmarks.process_tasks`, as worker processes import them."""

import os
import time
from typing import Any

from benchmarks.counters import count
from benchmarks.tasks import Tasks
from penstock.demo.survey import survey

__all__ = ["ProcessTasks", "app", "blob", "busy", "nap", "noop", "parse"]


def noop() -> None:
    count()


def busy(us: int) -> None:
    """Use the CPU for this time."""
    until = time.thread_time_ns() + us * 1_000
    while time.thread_time_ns() < until:
        pass
    count()


def blob(text: str) -> None:
    count()


def parse(path: str) -> None:
    """Parse and measure a file of Python, as the demo does."""
    survey(path)
    count()


def nap(seconds: float) -> None:
    time.sleep(seconds)


class ProcessTasks(Tasks):
    """An app in which each function of this module is a process task as well, by its name."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.process = {
            function.__name__: self.app.task(name=f"process_{function.__name__}", run_in="process")(function)
            for function in (noop, busy, blob, parse, nap)
        }


app = ProcessTasks(os.environ.get("BENCH_URL", "memory://")).app
