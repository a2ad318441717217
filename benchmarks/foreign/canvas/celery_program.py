"""A chord in Celery on Redis: `python celery_program.py serve|run URL MEMBERS`. Prints seconds as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery, chord  # type: ignore[import-not-found]

URL = sys.argv[2] if len(sys.argv) > 2 and "://" in sys.argv[2] else "redis://localhost"
app = Celery("canvas", broker=URL, backend=URL)
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)


@app.task(name="number")  # type: ignore[untyped-decorator]
def number(n: int) -> int:
    return n


@app.task(name="total")  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    return sum(numbers)


def main() -> None:
    """Store a chord, then start a worker, and wait for the result of the body."""
    members = int(sys.argv[3])
    started = time.perf_counter()
    waiting = chord(number.s(n) for n in range(members))(total.s())
    stored = time.perf_counter() - started
    command = [sys.executable, __file__, "serve", URL]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL) as worker:
        try:
            inspect = app.control.inspect(timeout=0.2)
            while not inspect.ping():
                pass
            started = time.perf_counter()
            assert waiting.get(timeout=100) == members * (members - 1) // 2
            print(json.dumps({"submit": stored, "run": time.perf_counter() - started}))
        finally:
            worker.terminate()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        app.worker_main(["worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR"])
    else:
        main()
