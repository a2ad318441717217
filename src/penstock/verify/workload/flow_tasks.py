"""The tasks of flows: nodes that compute, and jobs of several durable steps.

What each returns depends on its arguments alone, so the result of a flow is known before it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from typing import Any

from penstock.app.attempt import current_job
from penstock.core.errors import ConfigError, Discard, Snooze
from penstock.core.flow import OPEN
from penstock.core.job import Ref
from penstock.verify.ledger.recording.recorded_step import recorded_step
from penstock.verify.workload.application import PlannedFailure, app, ledger
from penstock.workflows import current_flow, current_sync_flow

__all__ = ["SIGNAL"]

#: The name of the signals of a run.
SIGNAL = "go"
#: The share of calls in which the function of a step fails.
_SHAKY = 0.4

# ── nodes ────────────────────────────────────────────────────────────────────────────────────────


@app.task(queue="flows")
async def leaf(n: int) -> int:
    return n


@app.task(queue="flows")
def leaf_in_thread(n: int) -> int:
    return n


@app.task(queue="flows")
async def late_leaf(n: int, times: int) -> int:
    """Fail in the first attempts."""
    attempt = current_job().attempt
    if attempt <= times:
        raise PlannedFailure(f"attempt {attempt} of {times} that fail")
    return n


@app.task(queue="slow")
async def long_leaf(n: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return n


@app.task(queue="flows")
async def hopeless() -> int:
    raise Discard("on purpose")


@app.task(queue="flows")
async def grows(n: int) -> int:
    """Add a member to its group whose result does not change the sum, as it may be added again."""
    with contextlib.suppress(ConfigError):  # after a failover the group may have ended before
        await current_flow().add(leaf.job(0))
    return n


@app.task
async def plus(value: Any, by: int) -> int:
    return sum_of(value) + by


@app.task
async def total(values: list[Any]) -> int:
    return sum_of(values)


@app.task
async def both(left: int, right: int) -> int:
    return left + 2 * right


@app.task
async def noted(kind: str) -> None:
    """A callback of a flow."""


def sum_of(value: Any) -> int:
    """The sum of a result, and of lists of them; a failed node has none, which counts 0."""
    if isinstance(value, list):
        return sum(sum_of(one) for one in value)
    return int(value or 0)


# ── durable steps ────────────────────────────────────────────────────────────────────────────────


def _remember(n: int) -> list[Any]:
    """The function of most steps: its result is another each time it runs."""
    return [n, secrets.token_hex(4)]


def _fail_often(n: int) -> list[Any]:
    if random.random() < _SHAKY:  # noqa: S311 (chaos by lot, no secret)
        raise PlannedFailure("the function of a step fails on purpose")
    return _remember(n)


def _undo(value: list[Any]) -> None:
    """The undo function of each step of a saga."""


@app.task(queue="flows")
async def durable(n: int, nap: float, children: int) -> int:
    flow = current_flow()
    first = await flow.step("first", recorded_step(ledger, "first", _remember), n)
    await flow.sleep(nap)
    shaky = recorded_step(ledger, "shaky", _fail_often)
    second = await flow.step("shaky", shaky, n, attempts=3, retry_delay="200ms")
    results = await flow.gather([leaf.job(i) for i in range(children)])
    last = await flow.step("last", recorded_step(ledger, "last", _remember), n)
    return int(first[0] + second[0] + last[0]) + sum(results)


@app.task(queue="flows")
def durable_in_thread(n: int, nap: float) -> int:
    flow = current_sync_flow()
    first = flow.step("first", recorded_step(ledger, "first", _remember), n)
    flow.sleep(nap)
    last = flow.step("last", recorded_step(ledger, "last", _remember), n)
    return int(first[0] + last[0])


@app.task(queue="flows")
async def walks(n: int, items: int, nap: float) -> int:
    """A long loop: each item has a step."""
    flow = current_flow()
    async for item in flow.iterate("items", range(items), every="100ms"):
        await flow.step(f"item {item}", recorded_step(ledger, f"item {item}", _remember), item)
        if item == items // 2:
            await flow.sleep(nap)
    return n


@app.task(queue="flows")
async def saga(n: int, nap: float, fails: bool) -> int:
    flow = current_flow()
    done = 0
    for name in ("reserve", "charge", "ship"):
        undo = recorded_step(ledger, f"undo!{name}", _undo)
        value = await flow.step(name, recorded_step(ledger, name, _remember), n, undo=undo)
        done += value[0]
        await flow.sleep(nap)
    if fails:
        raise Discard("on purpose")
    return done


@app.task(queue="flows")
def saga_in_thread(n: int, nap: float, fails: bool) -> int:
    flow = current_sync_flow()
    done = 0
    for name in ("reserve", "charge"):
        undo = recorded_step(ledger, f"undo!{name}", _undo)
        value = flow.step(name, recorded_step(ledger, name, _remember), n, undo=undo)
        done += value[0]
        flow.sleep(nap)
    if fails:
        raise Discard("on purpose")
    return done


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


@app.task(queue="flows")
async def waits(key: str, n: int, timeout: float | None = None) -> int:
    """Wait for a signal of this key; without one, the result is n."""
    flow = current_flow()
    await flow.step("before", recorded_step(ledger, "before", _remember), n)
    got = await flow.wait_for(SIGNAL, key=key, timeout=timeout, of=int)
    await flow.step("after", recorded_step(ledger, "after", _remember), n)
    return n if got is None else n + int(got)


@app.task
async def sends(key: str, n: int, waiters: int = 1) -> int:
    """Send a signal, and again later while the one before it was not received.

    The first nodes of its flow wait for one. They need none any more if a sender has sent its own twice.
    """
    flow = current_job().job.spec.flow
    if await app.asignal(SIGNAL, key=key, data=n) == "exists" and flow is not None:
        nodes = await app.store.flow_nodes(Ref(flow.queue, flow.id), range(waiters))
        if any(node is not None and node.state in OPEN for node in nodes):
            raise Snooze(0.3)
    return 0
