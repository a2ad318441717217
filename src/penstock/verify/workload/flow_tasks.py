"""The tasks of flows: nodes that compute, and jobs of several durable steps.

What each returns depends on its arguments alone, so the result of a flow is known before it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

from penstock.app.attempt import current_job
from penstock.core.errors import ConfigError, Discard, Snooze
from penstock.core.flow import OPEN
from penstock.core.job import Ref
from penstock.verify.effects import act_in_process
from penstock.verify.ledger.ledger import Happen, record_answer, recorded_step
from penstock.verify.workload.application import PlannedFailure, app, ledger
from penstock.workflows import StepFlow, SyncStepFlow, current_flow, current_sync_flow

#: The name of the signals of a run.
SIGNAL = "go"
#: The share of calls in which the function of a step fails.
_SHAKY = 0.4
#: How long a step takes that is cut off (s).
_TOO_LONG = 5.0

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


def _act(happen: Happen, n: int, job: str, *given: str) -> list[Any]:
    """The function of most steps: it has an effect. Its result is another each time it runs."""
    return [n, happen()]


def _act_at_last(happen: Happen, n: int, job: str) -> list[Any]:
    if random.random() < _SHAKY:  # noqa: S311 (chaos by lot, no secret)
        raise PlannedFailure("the function of a step fails on purpose")
    return [n, happen()]


def _refuse(happen: Happen, n: int, job: str) -> list[Any]:
    """A step that fails behind its effect."""
    happen()
    raise PlannedFailure("sold out")


async def _take_too_long(happen: Happen, n: int, job: str) -> list[Any]:
    mark = happen()
    await asyncio.sleep(_TOO_LONG)
    return [n, mark]


def _take_back(happen: Happen, value: list[Any]) -> None:
    """The undo function of each step of a saga."""
    if random.random() < _SHAKY:  # noqa: S311 (chaos by lot, no secret)
        raise PlannedFailure("an undo fails on purpose")
    happen()


class _Steps(NamedTuple):
    """The steps of the running job, with recorded functions."""

    flow: StepFlow

    async def act(self, name: str, n: int, *given: str, label: str = "", **more: Unpack[_Options]) -> int:
        """The answer of a step. `label`: with its scope and number of use, as in `a/charge#2`."""
        function, options = _recorded(label or name, more)
        answer = await self.flow.step(name, function, n, self.flow.id, *given, **options)
        return _own(label or name, answer)


class _SyncSteps(NamedTuple):
    """The same in a thread."""

    flow: SyncStepFlow

    def act(self, name: str, n: int, *given: str, label: str = "", **more: Unpack[_Options]) -> int:
        function, options = _recorded(label or name, more)
        answer = self.flow.step(name, function, n, self.flow.id, *given, **options)
        return _own(label or name, answer)


class _Options(TypedDict, total=False):
    """The options of a step: its function, and whether it can be undone."""

    function: Callable[..., Any]
    undoable: bool
    attempts: int
    retry_delay: str


def _recorded(label: str, more: _Options) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The recorded function of a step, and the options of the flow."""
    options: dict[str, Any] = {**more}
    function = options.pop("function", _act)
    if options.pop("undoable", False):
        options["undo"] = recorded_step(ledger, f"undo!{label}", _take_back)
    return recorded_step(ledger, label, function), options


def _own(step: str, answer: list[Any]) -> int:
    record_answer(ledger, step, answer[1])
    return int(answer[0])


@app.task(queue="flows")
async def durable(n: int, nap: float, children: int) -> int:
    flow = current_flow()
    steps = _Steps(flow)
    first = await steps.act("first", n)
    await flow.sleep(nap)
    second = await steps.act("shaky", n, function=_act_at_last, attempts=3, retry_delay="200ms")
    results = await flow.gather([leaf.job(i) for i in range(children)])
    last = await steps.act("last", n)
    return first + second + last + sum(results)


@app.task(queue="flows")
def durable_in_thread(n: int, nap: float) -> int:
    flow = current_sync_flow()
    steps = _SyncSteps(flow)
    first = steps.act("first", n)
    flow.sleep(nap)
    return first + steps.act("last", n)


@app.task(queue="flows")
async def walks(n: int, items: int, nap: float) -> int:
    """A long loop, with a step in each item, and operations of the same names behind it."""
    flow = current_flow()
    steps = _Steps(flow)
    async for item in flow.iterate("items", range(items), every="100ms"):
        await steps.act("act", item, label=f"items[{item + 1}]/act")
        if item == items // 2:
            await flow.sleep(nap)
    await flow.sleep(nap)
    return await steps.act("act", n)


@app.task(queue="flows")
async def renders(n: int, nap: float) -> int:
    """A step in a process of its own, and one on the event loop."""
    flow = current_flow()
    place = (str(ledger.directory), flow.queue, flow.id, current_job().job.token or "")
    found = await flow.step("render", act_in_process, n, flow.id, place, run_in="process", changing=True)
    await flow.sleep(nap)
    return _own("render", found) + await _Steps(flow).act("send", n)


# ── branches ─────────────────────────────────────────────────────────────────────────────────────


@app.task(queue="flows")
async def branching(n: int, nap: float, children: int) -> int:
    """Branches that use the same names, each in another order."""
    flow = current_flow()
    steps = _Steps(flow)

    async def acts_first() -> int:
        first = await steps.act("act", n, label="a/act")
        await flow.sleep(nap)
        return first + await steps.act("act", n, label="a/act#2")

    async def sleeps_first() -> int:
        await flow.sleep(nap / 2)
        return await steps.act("act", n + 1, label="b/act")

    async def gathers_first() -> int:
        results = await flow.gather([leaf.job(i) for i in range(children)])
        await flow.sleep(nap)
        return sum(results) + await steps.act("act", n + 2, label="c/act")

    found = await flow.branches(a=acts_first, b=sleeps_first, c=gathers_first)
    return sum(map(int, found.values())) + await steps.act("act", n)


@app.task(queue="flows")
def branching_in_thread(n: int, nap: float) -> int:
    flow = current_sync_flow()
    steps = _SyncSteps(flow)

    def acts_first() -> int:
        first = steps.act("act", n, label="a/act")
        flow.sleep(nap)
        return first

    def sleeps_first() -> int:
        flow.sleep(nap / 2)
        return steps.act("act", n + 1, label="b/act")

    found = flow.branches(a=acts_first, b=sleeps_first)
    return int(found["a"]) + int(found["b"]) + steps.act("act", n)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


@app.task(queue="flows")
async def catches(n: int, nap: float) -> int:
    """A step fails for good, once: the flow goes on with another, also when it runs again."""
    flow = current_flow()
    steps = _Steps(flow)
    try:
        done = await steps.act("reserve", n, function=_refuse)
    except PlannedFailure:
        done = await steps.act("refund", n)
    await flow.sleep(nap)
    return done + await steps.act("last", n)


@app.task(queue="flows")
def catches_in_thread(n: int, nap: float) -> int:
    flow = current_sync_flow()
    steps = _SyncSteps(flow)
    try:
        done = steps.act("reserve", n, function=_refuse)
    except PlannedFailure:
        done = steps.act("refund", n)
    flow.sleep(nap)
    return done + steps.act("last", n)


@app.task(queue="flows")
async def cuts_off(n: int, nap: float) -> int:
    """A timeout of the code cuts off a step: the same happens when the flow runs again."""
    flow = current_flow()
    steps = _Steps(flow)
    try:
        async with asyncio.timeout(0.1):
            done = await steps.act("slow", n, function=_take_too_long)
    except TimeoutError:
        done = await steps.act("instead", n)
    await flow.sleep(nap)
    return done + await steps.act("last", n)


# ── sagas ────────────────────────────────────────────────────────────────────────────────────────


@app.task(queue="flows")
async def saga(n: int, nap: float, fails: bool) -> int:
    flow = current_flow()
    steps, done = _Steps(flow), 0
    for name in ("reserve", "charge", "ship"):
        done += await steps.act(name, n, undoable=True)
        await flow.sleep(nap)
    if fails:
        raise Discard("on purpose")
    return done


@app.task(queue="flows")
def saga_in_thread(n: int, nap: float, fails: bool) -> int:
    flow = current_sync_flow()
    steps, done = _SyncSteps(flow), 0
    for name in ("reserve", "charge"):
        done += steps.act(name, n, undoable=True)
        flow.sleep(nap)
    if fails:
        raise Discard("on purpose")
    return done


@app.task(queue="flows")
async def wide_saga(n: int, nap: float, fails: bool) -> int:
    """A saga with steps in branches and in a loop."""
    flow = current_flow()
    steps = _Steps(flow)

    async def branch(name: str) -> int:
        done = await steps.act("reserve", n, label=f"{name}/reserve", undoable=True)
        await flow.sleep(nap)
        return done

    found = await flow.branches(a=branch("a"), b=branch("b"))
    async for item in flow.iterate("items", range(2), every="100ms"):
        await steps.act("charge", n, label=f"items[{item + 1}]/charge", undoable=True)
        await flow.sleep(nap)
    if fails:
        raise Discard("on purpose")
    return int(found["a"]) + int(found["b"])


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


@app.task(queue="flows")
async def waits(key: str, n: int, timeout: float | None = None) -> int:
    """Wait for a signal of this key; without one, the result is n."""
    flow = current_flow()
    steps = _Steps(flow)
    await steps.act("before", n)
    got = await flow.wait_for(SIGNAL, key=key, timeout=timeout, of=int)
    await steps.act("after", n)
    return n if got is None else n + int(got)


@app.task(queue="flows")
async def waits_for_items(key: str, n: int, items: int, nap: float) -> int:
    """A loop that waits for a signal in each item, which says its number."""
    flow = current_flow()
    steps = _Steps(flow)
    async for item in flow.iterate("items", range(items), every="100ms"):
        await steps.act("pack", n, label=f"items[{item + 1}]/pack")
        if item % 2:
            await flow.sleep(nap)
        got = await flow.wait_for(SIGNAL, key=f"{key}/{item}", of=int)
        if got != item:
            raise Discard(f"item {item} got the signal of item {got}")
    return await steps.act("pack", n)


@app.task(queue="flows")
async def races(key: str, n: int, nap: float) -> int:
    """A signal against a timer: whichever was first is so in each run, or its step is asked of another."""
    flow = current_flow()
    steps = _Steps(flow)
    wait = flow.wait_for(SIGNAL, key=key, of=int)
    winner, _ = await flow.first(signal=wait, timer=flow.sleep(nap))
    done = await steps.act("won", n, winner)
    await flow.sleep(nap)
    return done + await steps.act("last", n, winner)


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
