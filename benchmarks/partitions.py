"""Order within each concurrency key: many jobs, several worker processes, two of them killed with SIGKILL.

    python -m benchmarks.partitions [--url URL] [--jobs 10000] [--keys 100] [--workers 8]

Every attempt writes its begin and its end into a ledger file. At the end the jobs of each key must have run
in order, and never two at once; otherwise the benchmark fails with the violations.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock import App

app = App(os.environ.get("PARTITIONS_URL", "memory://"))
_ledger = os.environ.get("PARTITIONS_LEDGER", "")


def _write(*words: object) -> None:
    """Append one line in a single write, so that lines of several processes do not mix."""
    file = os.open(_ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


@app.task(concurrency_key="key", ordered=True, retention=0, max_attempts=50)
async def step(key: int, number: int) -> None:
    _write("begin", key, number, os.getpid())
    _write("end", key, number, os.getpid())


def main() -> None:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="penstock-partitions-"))
    ledger = folder / "ledger"
    url = options.url or f"sqlite:///{folder / 'jobs.db'}"
    env = {**os.environ, "PARTITIONS_URL": url, "PARTITIONS_LEDGER": str(ledger)}
    if os.environ.get("PARTITIONS_LEDGER") != str(ledger):
        made = subprocess.run(
            [sys.executable, "-m", "benchmarks.partitions", *sys.argv[1:], "--fill"], env=env
        )
        made.check_returncode()
    workers = [_worker(env) for _ in range(options.workers)]
    began, killed = time.monotonic(), 0
    try:
        while (done := _ended(ledger)) < options.jobs:
            if killed < 2 and done > options.jobs * (killed + 1) / 3:
                victim = workers.pop(random.randrange(len(workers)))
                victim.kill()
                victim.wait()
                workers.append(_worker(env))
                killed += 1
            if time.monotonic() - began > options.patience:
                raise SystemExit(f"only {done} of {options.jobs} have ended in {options.patience} s")
            time.sleep(0.2)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    took = time.monotonic() - began
    wrong = check(ledger, options.jobs, options.keys)
    print(f"{options.jobs} jobs over {options.keys} ordered keys, {options.workers} workers: {took:.1f} s")
    print(f"{killed} workers were killed on the way")
    print("\n".join(wrong) if wrong else "per key strictly in order, never two at once")
    raise SystemExit(1 if wrong else 0)


def check(ledger: Path, jobs: int, keys: int) -> list[str]:
    """The violations in this ledger."""
    wrong: list[str] = []
    open_: dict[int, tuple[int, str]] = {}
    last: dict[int, int] = {}
    ended: set[tuple[int, int]] = set()
    for line in ledger.read_text().splitlines():
        what, key_text, number_text, pid = line.split()
        key, number = int(key_text), int(number_text)
        if what == "begin":
            if key in open_ and open_[key][0] != number:
                wrong.append(f"key {key}: {number} began beside {open_[key]}")
            if number not in (last.get(key, -1) + 1, last.get(key, -1)):
                wrong.append(f"key {key}: {number} began after {last.get(key)}")
            open_[key] = number, pid
        else:
            if open_.pop(key, None) != (number, pid):
                wrong.append(f"key {key}: {number} ended, which was not the one that ran")
            last[key] = number
            ended.add((key, number))
    if len(ended) != jobs:
        wrong.append(f"{len(ended)} of {jobs} have ended")
    if len(last) != keys:
        wrong.append(f"{len(last)} of {keys} keys were seen")
    return wrong


def _ended(ledger: Path) -> int:
    return ledger.read_bytes().count(b"end ") if ledger.exists() else 0


def _worker(env: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", "worker", "benchmarks.partitions:app", "--concurrency", "8"]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default=None, help="the store; a SQLite file of its own without it")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--patience", type=float, default=300)
    parser.add_argument("--fill", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        app.enqueue_many([step.job(n % options.keys, n // options.keys) for n in range(options.jobs)])
        raise SystemExit(0)
    return options


if __name__ == "__main__":
    main()
