"""A checkout of five steps that survives a kill at each of them: payment, a signal, a timer, mails, undo.

Run it: `python examples/checkout.py`. Each order is one job: it charges the customer, waits until the
warehouse says that the order is packed, waits a moment more, and closes the order. The worker process is
killed with `kill -9` right after each step of the first order, and a new one starts. The second order is out
of stock at the end: its payment is refunded. The bank of this example books a payment once per key.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock import App, Discard, State, fixed
from penstock.workflows import current_flow

HOME = Path(os.environ.get("CHECKOUT_HOME", "."))
app = App(f"sqlite:///{HOME}/checkout.db")


def bank(what: str, key: str) -> None:
    """Book a payment or a refund; the same key twice is the same payment, as at a real bank."""
    (HOME / f"{what} of order {key}").touch()


def die_after(step: str) -> None:
    """Kill this process once, if the test wants it to die after this step."""
    plan = HOME / f"die after {step}"
    if plan.exists():
        plan.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def charge(order: int) -> str:
    bank("charge", f"{order}")
    return f"payment {order}"


def refund(payment: str) -> None:
    bank("refund", payment.removeprefix("payment "))


async def close(order: int) -> str:
    if order == 2:
        raise Discard("out of stock")
    return f"order {order} is closed"


@app.task
async def mail(text: str) -> str:
    return text.upper()


@app.task(retry=fixed("200ms"))
async def checkout(order: int) -> str:
    flow = current_flow()
    await flow.step("charge", charge, order, undo=refund)
    die_after(f"charge {order}")
    packed = await flow.wait_for("packed", key=order, timeout="1m", of=list[str])
    die_after(f"packed {order}")
    await flow.sleep("0.6s")
    die_after(f"sleep {order}")
    mails = await flow.gather([mail.job(one) for one in packed or []])
    die_after(f"mails {order}")
    closed = await flow.step("close", close, order)
    die_after(f"close {order}")
    return f"{closed}: {', '.join(mails)}"


def worker() -> subprocess.Popen[bytes]:
    code = "import asyncio, checkout; from penstock import Worker; asyncio.run(Worker(checkout.app).run())"
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", code], env=place, stderr=subprocess.DEVNULL)


def main() -> None:
    steps = ["charge", "packed", "sleep", "mails", "close"]
    for step in steps:
        (HOME / f"die after {step} 1").touch()
    first, second = checkout.enqueue(1), checkout.enqueue(2)
    app.signal("packed", key=1, data=["ann", "bob"])  # before the flow waits
    kills, process = 0, worker()
    try:
        sent = False
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and {first.status(), second.status()} & {*UNFINISHED}:
            if process.poll() is not None:
                kills, process = kills + 1, worker()
            if not sent and second.status() is State.SUSPENDED:
                app.signal("packed", key=2, data=["eve"])
                sent = True
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait()
    tell(first, second, kills)


UNFINISHED = (State.AVAILABLE, State.RUNNING, State.RETRYABLE, State.SUSPENDED, State.SCHEDULED)


def tell(first: Any, second: Any, kills: int) -> None:
    print(f"the worker was killed {kills} times, once after each step of the first order")
    print(f"first order: {first.result(timeout=60)}")
    print(f"second order: {second.status().value}: {second.job().errors[-1].message}")
    booked = sorted(path.name for path in HOME.glob("* of order *"))
    print(f"the bank: {', '.join(booked)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHECKOUT_HOME"] = folder
        import checkout  # with the folder of this run

        checkout.main()
