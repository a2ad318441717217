"""Orders that must be paid in time: reminded at 10 minutes, closed at 30, never both paid and closed.

Run it: `python examples/orders.py`. It places orders, pays some of them (a few at the very instant of
their closing), kills a worker with SIGKILL while it sends reminders, and counts the results. A minute
lasts 0.3 s; `--scale` changes that (1 is real time).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock import App, current_job

if __name__ == "__main__":  # the workers import this file too, and find the directory in the environment
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scale", default="0.005", help="how long a minute is, of a real one [0.005]")
    os.environ["SHOP_SCALE"] = options.parse_args().scale
    os.environ["SHOP_DIR"] = tempfile.mkdtemp(prefix="orders-")

# ── the shop: what an application would have ─────────────────────────────────────────────────────

HERE = Path(os.environ.get("SHOP_DIR", "."))
MINUTE = 60 * float(os.environ.get("SHOP_SCALE", "1"))  # seconds

app = App(f"sqlite:///{HERE}/jobs.db", queue="orders", retry=0.1)


def place(order: int) -> None:
    """Place an order; the customer has half an hour to pay."""
    with shop() as db:
        db.execute("INSERT INTO orders (id, state) VALUES (?, 'open')", [order])
    remind.using(id=f"order-{order}-remind", delay=10 * MINUTE).enqueue(order)
    close.using(id=f"order-{order}-close", delay=30 * MINUTE).enqueue(order)


def pay(order: int) -> bool:
    """Pay an order. False: too late, the order is closed."""
    if not move(order, "paid"):
        return False
    app.handle(f"order-{order}-remind", task=remind).cancel()
    app.handle(f"order-{order}-close", task=close).cancel()
    return True


@app.task
def remind(order: int) -> None:
    """Send a reminder.

    May run twice if its worker dies; the job's id as key makes sure that one mail is sent.
    """
    with shop() as db:
        (state,) = db.execute("SELECT state FROM orders WHERE id = ?", [order]).fetchone()
        if state == "open":
            time.sleep(0.05)  # the mail server is slow
            db.execute("INSERT OR IGNORE INTO mails (key, to_order) VALUES (?, ?)", [current_job().id, order])


@app.task
def close(order: int) -> None:
    move(order, "closed")


def move(order: int, state: str) -> bool:
    """Make an open order paid or closed. The first caller wins; False for the second one."""
    with shop() as db:
        moved = db.execute("UPDATE orders SET state = ? WHERE id = ? AND state = 'open'", [state, order])
        return moved.rowcount == 1


@contextlib.contextmanager
def shop() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(HERE / "shop.db", timeout=30, isolation_level=None)) as db:
        yield db


# ── the scenario: one hour of the shop ───────────────────────────────────────────────────────────

EARLY = range(10)  # pay at minute 5
LATE = range(10, 20)  # pay at minute 20, after their reminder
NEVER = range(20, 25)
RACING = range(25, 45)  # pay at the instant of their closing
ALL = range(45)


@app.around_attempt
async def note_the_start(job, call):  # type: ignore[no-untyped-def]
    """Record when and in which process each attempt started, for the report."""
    late = time.time() - job.run_at / 1000
    with shop() as db:
        db.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, 0)", [job.id, job.attempt, os.getpid(), late])
    value = await call()
    with shop() as db:
        db.execute("UPDATE attempts SET ended = 1 WHERE id = ? AND attempt = ?", [job.id, job.attempt])
    return value


def main() -> None:
    with shop() as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)")
        db.execute("CREATE TABLE mails (key TEXT PRIMARY KEY, to_order INTEGER NOT NULL)")
        db.execute("CREATE TABLE attempts (id TEXT, attempt INTEGER, pid INTEGER, late REAL, ended INTEGER)")
    with workers():
        began = time.monotonic()
        placed = {}
        for order in ALL:
            place(order)
            placed[order] = time.monotonic()
        print(f"{len(ALL)} orders: reminded at minute 10, closed at minute 30 unless paid")

        until(began + 5 * MINUTE)
        paid = sum(pay(order) for order in EARLY)
        print(f"minute  5: {paid} paid, their reminder and their closing were called off")

        until(began + 10 * MINUTE)
        held = kill_a_worker_that_sends()
        print("minute 10: a worker was killed while it sent reminders")

        until(began + 20 * MINUTE)
        while count("SELECT count(*) FROM mails") < len(ALL) - len(EARLY):  # a slow machine needs longer
            time.sleep(0.001)
        paid = sum(pay(order) for order in LATE)
        mails = count("SELECT count(*) FROM mails")
        print(f"minute 20: {mails} reminders have been sent; {paid} more orders were paid")

        in_time = race({order: placed[order] + 30 * MINUTE for order in RACING})
        assert app.drained("orders", timeout=60)
        print("minute 30: the rest was closed, or paid in the same instant")
    report(held, in_time)


def report(held: list[str], in_time: dict[int, bool]) -> None:
    """Count the results and check them."""
    with shop() as db:
        states = dict(db.execute("SELECT id, state FROM orders").fetchall())
        attempts = db.execute("SELECT id, attempt, late FROM attempts").fetchall()
        mailed = sorted(order for (order,) in db.execute("SELECT to_order FROM mails"))

    assert all(states[order] == "paid" for order in [*EARLY, *LATE])
    assert all(states[order] == "closed" for order in NEVER)
    assert mailed == [*LATE, *NEVER, *RACING], "each unpaid order was reminded exactly once"
    print(f"reminders: {len(mailed)} sent, each once")

    # each racing order has one winner: it is paid if and only if pay() returned True
    torn = [order for order in RACING if (states[order] == "paid") is not in_time[order]]
    assert not torn, f"both or neither won: {torn}"
    print(f"races: {len(RACING)} decided, none twice, none never")

    again = {id for id, attempt, _ in attempts if attempt == 2}
    assert held
    assert again.issuperset(held), "what the killed worker had begun ran again"
    print("the killed worker's reminders ran again")

    called_off = {f"order-{order}-close" for order in [*EARLY, *LATE]}
    assert not called_off & {id for id, _, _ in attempts}, "a closing that was called off does not run"
    assert min(late for _, _, late in attempts) >= -0.001, "nothing ran early"
    latest = max(late for _, attempt, late in attempts if attempt == 1)
    print(f"nothing ran early; the latest first attempt began {latest * 1000:.0f} ms after its time")
    won = sum(in_time.values())
    print(f"of the racing customers {won} were in time and {len(RACING) - won} too late")


def race(instants: dict[int, float]) -> dict[int, bool]:
    """Let each of these customers pay at the instant at which the order is to be closed."""
    in_time: dict[int, bool] = {}

    def customer(order: int) -> None:
        until(instants[order] + (order % 5) * 0.002)
        in_time[order] = pay(order)

    customers = [threading.Thread(target=customer, args=[order]) for order in instants]
    for one in customers:
        one.start()
    for one in customers:
        one.join()
    return in_time


def kill_a_worker_that_sends() -> list[str]:
    """Kill a worker process while it sends reminders; returns the ids of the reminders it had started."""
    while True:
        with shop() as db:
            (busy,) = db.execute("SELECT max(pid) FROM attempts WHERE ended = 0").fetchone()
        if busy is None:
            time.sleep(0.001)
            continue
        os.kill(busy, signal.SIGSTOP)  # so that it ends no job during the query
        with shop() as db:
            held = [id for (id,) in db.execute("SELECT id FROM attempts WHERE ended = 0 AND pid = ?", [busy])]
        os.kill(busy, signal.SIGKILL if held else signal.SIGCONT)
        if held:
            return held


def count(query: str) -> int:
    with shop() as db:
        return int(db.execute(query).fetchone()[0])


def until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.monotonic()))


@contextlib.contextmanager
def workers() -> Iterator[None]:
    """Run `penstock worker orders:app --processes 2` in the block."""
    command = [sys.executable, "-m", "penstock", "worker", "orders:app", "--processes", "2"]
    with (HERE / "worker.log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=log, stderr=log)
    try:
        while len(asyncio.run(app.store.workers())) < 2:
            assert worker.poll() is None, (HERE / "worker.log").read_text()
            time.sleep(0.01)
        yield
    finally:
        worker.terminate()
        worker.wait(60)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(HERE)
