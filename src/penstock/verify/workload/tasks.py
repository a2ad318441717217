"""The tasks of a run: tasks of every kind, and tasks that cause faults.

Its workers are `penstock worker penstock.verify.workload.tasks:app`. A task that causes a fault records it in
the ledger first.

Most process tasks record their attempts themselves, so that their calls lie ready in the children. Those in
order and at most once have middleware, and each has a child of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time

from penstock.app.attempt import current_job
from penstock.core.errors import Snooze
from penstock.core.relations import Batch
from penstock.core.unique import Unique
from penstock.stores.contract import Capability
from penstock.verify.run_folder import LEDGER, VERSION
from penstock.verify.workload import flow_tasks as flow_tasks  # registers the tasks of flows
from penstock.verify.workload.application import PlannedFailure, can, task_if
from penstock.verify.workload.application import app as app  # the workers' and the producers' path of it
from penstock.verify.workload.application import ledger as ledger

_VERSION = os.environ.get(VERSION, "1")
#: Target of a fault that costs no other process an attempt; no process has this id.
_NO_PROCESS = -1
#: Memory (bytes) that a task allocates before it is killed: visible, but harmless for the machine.
_MEMORY = 192 * 1024 * 1024


# ── work ─────────────────────────────────────────────────────────────────────────────────────────


@app.task
async def quick(n: int = 0) -> int:
    return n


@app.task
def in_thread(n: int = 0) -> None:
    """A thread task without a result: its job is not kept."""


@app.task(run_in="process")
@ledger.recorded
def in_process(milliseconds: int) -> int:
    time.sleep(milliseconds / 1000)
    return os.getpid()


@app.task(run_in="process")
@ledger.recorded
def short_in_process(microseconds: int) -> int:
    """Compute for less than a millisecond: many such calls lie ready in each child."""
    until = time.perf_counter_ns() + microseconds * 1_000
    while time.perf_counter_ns() < until:
        pass
    return os.getpid()


@app.task(run_in="process")
@ledger.recorded
def fails_at_first_in_process(times: int) -> int:
    attempt = current_job().attempt
    if attempt <= times:
        raise PlannedFailure(f"attempt {attempt} of {times} that fail")
    return attempt


@app.task(queue="slow", run_in="process")
@ledger.recorded
def slow_in_process(seconds: float) -> None:
    time.sleep(seconds)


@app.task(delivery="at-most-once", run_in="process")
def once_in_process(n: int) -> None:
    ledger.started(current_job())


@task_if(Capability.PARTITIONS, queue="keys", concurrency_key="device", ordered=True, run_in="process")
def in_order_in_process(device: int, n: int) -> None:
    ledger.started(current_job())
    time.sleep(0.01)


@app.task
async def fails_at_first(times: int) -> int:
    attempt = current_job().attempt
    if attempt <= times:
        raise PlannedFailure(f"attempt {attempt} of {times} that fail")
    return attempt


@app.task(queue="slow")
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(queue="slow")
def slow_in_thread(seconds: float) -> None:
    time.sleep(seconds)


@app.task(delivery="at-most-once")
async def once(n: int) -> None:
    await asyncio.sleep(0.01)


@task_if(Capability.UNIQUE, unique=True)
async def deduplicated(what: int) -> None:
    await asyncio.sleep(0.05)


@task_if(
    Capability.UNIQUE,
    unique=Unique(by="what", states="queued", on_conflict="replace", replace=("arguments", "run_at")),
)
async def debounced(what: int, n: int) -> None:
    await asyncio.sleep(0.01)


@task_if(Capability.PARTITIONS, queue="keys", concurrency_key="device", ordered=True)
async def in_order(device: int, n: int) -> None:
    await asyncio.sleep(0.02)


@task_if(Capability.PARTITIONS, queue="keys", concurrency_key="tenant", max_running_per_key=2)
def two_at_once(tenant: int) -> None:
    time.sleep(0.03)


@task_if(Capability.BATCHES, queue="batches", batch=Batch(max_size=10, max_wait="1s"))
async def together(items: list[int]) -> None:
    await asyncio.sleep(0.02)


@app.task
async def snoozes(until: float) -> None:
    """Snooze until this moment of the machine's monotonic clock, which a wrong wall clock does not change."""
    if time.monotonic() < until:
        raise Snooze(0.3)


@app.task
async def beat() -> None:
    await asyncio.sleep(0.01)


# ── two versions of the code ─────────────────────────────────────────────────────────────────────

if _VERSION == "1":

    @app.task(name="verify.only-in-one")
    async def only_in_one() -> None:
        await asyncio.sleep(0.01)

    @app.task(name="verify.old-name")
    async def renamed() -> None:
        await asyncio.sleep(0.01)

    _PAY: tuple[str, ...] = ("verify.pay",)
    _REMIND: tuple[str, ...] = ("verify.remind",)
else:

    @app.task(name="verify.new-name", aliases=("verify.old-name",))
    async def renamed() -> None:
        await asyncio.sleep(0.01)

    _PAY = ("verify.pay", "verify.charge")
    _REMIND = ("verify.remind", "verify.nudge")

_PAID_ONCE = Unique(by="invoice", states=("queued", "running", "finished"), period="1d")


@task_if(Capability.UNIQUE, name=_PAY[-1], aliases=_PAY[:-1], unique=_PAID_ONCE)
async def pay(invoice: int) -> None:
    """Once per invoice, whichever release enqueues and runs it."""
    await asyncio.sleep(0.05)


@app.task(name=_REMIND[-1], aliases=_REMIND[:-1])
async def remind() -> None:
    await asyncio.sleep(0.01)


if can(Capability.SCHEDULE):
    app.periodic(every="2s", name="beat", task=beat)
    app.periodic(every="3s", task=remind)


# ── faults ───────────────────────────────────────────────────────────────────────────────────────


@app.task(queue="harm")
async def raises() -> None:
    ledger.fault("task", _NO_PROCESS, "raise")
    raise PlannedFailure("on purpose")


@app.task(queue="harm")
async def hangs() -> None:
    ledger.fault("task", _NO_PROCESS, "hang")
    await asyncio.sleep(3600)


@app.task(queue="harm")
def hangs_in_thread() -> None:
    ledger.fault("task", _NO_PROCESS, "hang")
    while True:
        time.sleep(0.05)


@app.task(queue="harm", run_in="process")
@ledger.recorded
def hangs_in_process() -> None:
    ledger.fault("task", _NO_PROCESS, "hang")
    time.sleep(3600)


@app.task(queue="harm")
async def blocks_the_loop(seconds: float) -> None:
    ledger.fault("task", _NO_PROCESS, "block-loop", seconds=seconds)
    time.sleep(seconds)  # noqa: ASYNC251 (that is the fault)


@app.task(queue="harm", run_in="process")
@ledger.recorded
def eats_memory() -> None:
    """Allocate memory like a leak, then kill this process in place of the kernel's out-of-memory killer."""
    eaten = [b"x" * (1 << 20) for _ in range(_MEMORY >> 20)]
    ledger.fault("kill", os.getpid(), "eat-memory")
    del eaten
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(queue="harm", run_in="process")
@ledger.recorded
def exits_in_process() -> None:
    ledger.fault("kill", os.getpid(), "os-exit")
    os._exit(3)


@app.task(queue="harm")
async def exits() -> None:
    """Exit the worker process, with all jobs that run in it."""
    ledger.fault("kill", os.getpid(), "os-exit")
    os._exit(3)


@app.task(queue="harm", run_in="process")
@ledger.recorded
def segfaults() -> None:
    ledger.fault("kill", os.getpid(), "segfault")
    ctypes.string_at(0)


if LEDGER in os.environ:
    ledger.watch_attempts(app)
