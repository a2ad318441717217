"""The process tasks of `benchmarks.process_tasks`, as worker processes import them."""

import os
import time

from benchmarks.counters import count
from penstock import App
from penstock.demo.survey import survey

__all__ = ["app", "blob", "busy", "nap", "noop", "parse"]

app = App(os.environ.get("BENCH_URL", "memory://"))


@app.task(name="noop", run_in="process")
def noop() -> None:
    count()


@app.task(name="busy", run_in="process")
def busy(us: int) -> None:
    """Use the CPU for this time."""
    until = time.thread_time_ns() + us * 1_000
    while time.thread_time_ns() < until:
        pass
    count()


@app.task(name="blob", run_in="process")
def blob(text: str) -> None:
    count()


@app.task(name="parse", run_in="process")
def parse(path: str) -> None:
    """Parse and measure a file of Python, as the demo does."""
    survey(path)
    count()


@app.task(name="nap", run_in="process")
def nap(seconds: float) -> None:
    time.sleep(seconds)
