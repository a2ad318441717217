"""Celery's canvas on Redis: `python celery_program.py run URL SHAPE N` prints seconds.

The worker has two processes, its default settings otherwise, and logs errors only.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from celery import Celery, chain, chord  # type: ignore[import-not-found]

URL = sys.argv[2]
PATIENCE = 80
app = Celery("canvas", broker=URL, backend=URL)
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)


@app.task(name="number")  # type: ignore[untyped-decorator]
def number(n: int) -> int:
    return n


@app.task(name="total")  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    return sum(numbers)


def run(shape: str, n: int) -> None:
    if shape == "chord":
        found = chord(number.s(k) for k in range(n))(total.s()).get(timeout=PATIENCE)
        assert found == n * (n - 1) // 2
    elif shape == "chain":
        assert chain(number.s(7), *[number.s()] * (n - 1))().get(timeout=PATIENCE) == 7
    else:
        waiting = [chord(number.s(k) for k in range(20))(total.s()) for _ in range(n)]
        assert all(one.get(timeout=PATIENCE) == 190 for one in waiting)


def main() -> None:
    command = [sys.executable, __file__, "serve", URL]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL) as worker:
        try:
            run("chord", 10)  # the worker serves
            started = time.perf_counter()
            run(sys.argv[3], int(sys.argv[4]))
            print(time.perf_counter() - started)
        finally:
            worker.terminate()


if __name__ == "__main__":
    sys.setrecursionlimit(100_000)  # a long chain is nested
    if sys.argv[1] == "serve":
        app.worker_main(["worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR"])
    else:
        main()
