"""The flows of a load, drawn from the seed, each with its result as a reference evaluator computes it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock.verify.workload import flow_tasks as t
from penstock.workflows import Canvas, Flow, chain, chord, group, immutable, into

_COMPLETED, _FAILED, _CANCELLED = "completed", "failed", "cancelled"


@dataclass(frozen=True)
class PlannedFlow:
    """A flow to enqueue, and how it must end; `cancel_after` (s): it is cancelled then.

    `ends`: the states in which it may end. `result`: its result if it completes; None: unknown.
    """

    shape: str
    canvas: Canvas[Any]
    result: Any
    ends: tuple[str, ...] = (_COMPLETED,)
    policy: str = "stop"
    cancel_after: float | None = None


class _Part(NamedTuple):
    """A part of a flow, its value (None: it fails, and has none), and whether a job of it fails."""

    part: Any
    value: Any
    fails: bool = False


#: Draws one flow of a shape.
FlowShape = Callable[[random.Random], PlannedFlow]


def draw_flow(rng: random.Random) -> PlannedFlow:
    """Draw the next flow of a producer."""
    (shape,) = rng.choices(list(FLOW_SHAPES), list(FLOW_SHAPES.values()))
    return shape(rng)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────


def _leaf(rng: random.Random, failing: float = 0.0) -> _Part:
    """A single job."""
    n = rng.randrange(1_000)
    if rng.random() < failing:
        return _Part(t.hopeless.job(), None, True)
    if rng.random() < 0.05:
        return _Part(t.long_leaf.job(n, round(rng.uniform(0.2, 1.5), 3)), n)
    if rng.random() < 0.2:
        return _Part(t.late_leaf.job(n, rng.randint(1, 2)), n)
    return _Part((t.leaf_in_thread if rng.random() < 0.3 else t.leaf).job(n), n)


def _part(rng: random.Random, depth: int, failing: float = 0.0) -> _Part:
    """A job, or a chain or chord of parts."""
    if depth == 0 or rng.random() < 0.5:
        return _leaf(rng, failing)
    if rng.random() < 0.4:
        first, by = _part(rng, depth - 1, failing), rng.randrange(100)
        return _Part(chain(first.part, t.plus.partial(by=by)), t.sum_of(first.value) + by, first.fails)
    members = _members(rng, depth - 1, failing)
    value = t.sum_of([one.value for one in members])
    return _Part(_chord(rng, members), value, any(one.fails for one in members))


def _members(rng: random.Random, depth: int, failing: float = 0.0) -> list[_Part]:
    return [_part(rng, depth, failing) for _ in range(rng.choice((0, 1, 2, 3, 5, 8)))]


def _chord(rng: random.Random, members: list[_Part]) -> Canvas[Any]:
    """A chord that sums up its members; some are in a group of their own."""
    parts = [one.part for one in members]
    cut = rng.randint(0, len(parts))
    if cut > 1 and rng.random() < 0.5:
        parts = [group(parts[:cut]), *parts[cut:]]
    return chord(parts, then=t.total)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────


def _nested(rng: random.Random) -> PlannedFlow:
    """Chords of chains of chords."""
    members = _members(rng, 2)
    canvas = _chord(rng, members)
    if rng.random() < 0.3:
        canvas.on_success(immutable(t.noted.job("success"))).on_complete(immutable(t.noted.job("complete")))
    return PlannedFlow("nested", canvas, t.sum_of([one.value for one in members]))


def _wide(rng: random.Random) -> PlannedFlow:
    """A chord of many members, some of which add further ones."""
    values = [rng.randrange(100) for _ in range(rng.randint(20, 40))]
    members = [(t.grows if rng.random() < 0.05 else t.leaf).job(n) for n in values]
    return PlannedFlow("wide", chord(members, then=t.total), sum(values))


def _chained(rng: random.Random) -> PlannedFlow:
    start, steps = rng.randrange(100), [rng.randrange(10) for _ in range(rng.randint(2, 8))]
    links = [t.plus.partial(by=by) for by in steps]
    return PlannedFlow("chain", chain(t.leaf.job(start), *links), start + sum(steps))


def _graph(rng: random.Random) -> PlannedFlow:
    """A graph with two ways from its beginning to its end."""
    flow, (a, b) = Flow(), (rng.randrange(100), rng.randrange(100))
    first = flow.add(t.leaf.job(a), name="first")
    left = flow.add(t.plus.partial(by=b), after=first)
    right = flow.add(chain(t.plus.partial(by=1), t.plus.partial(by=2)), after="first")
    meeting = flow.add(t.both, after={"left": left, "right": right})
    flow.add(into("value", t.plus.partial(by=5)), after=meeting)
    return PlannedFlow("graph", flow, (a + b) + 2 * (a + 3) + 5)


def _failing(rng: random.Random) -> PlannedFlow:
    """Jobs that fail for good, under each policy."""
    members = _members(rng, 2, failing=0.25)
    policy = rng.choice(("stop", "finish", "ignore"))
    fails = policy != "ignore" and any(one.fails for one in members)
    canvas = _chord(rng, members)
    for kind in ("success", "error", "complete"):
        if rng.random() < 0.5:
            getattr(canvas, f"on_{kind}")(immutable(t.noted.job(kind)))
    result = t.sum_of([one.value for one in members])
    return PlannedFlow(f"failing, {policy}", canvas, result, (_FAILED,) if fails else (_COMPLETED,), policy)


def _called_off(rng: random.Random) -> PlannedFlow:
    """A flow that is cancelled while it runs, or after its end."""
    members = [*_members(rng, 2), _Part(t.long_leaf.job(1, 1.0), 1), _Part(t.durable.job(1, 2.0, 1), 3)]
    canvas, result = _chord(rng, members), t.sum_of([one.value for one in members])
    return PlannedFlow(
        "cancelled", canvas, result, (_COMPLETED, _CANCELLED), cancel_after=rng.uniform(0.0, 3.0)
    )


def _durable(rng: random.Random) -> PlannedFlow:
    """Jobs of several steps, with naps and jobs of their own."""
    n, children = rng.randrange(100), rng.randrange(4)
    steps = t.durable.job(n, _nap(rng), children)
    other = t.durable_in_thread.job(n, _nap(rng))
    loop = t.walks.job(n, rng.randint(1, 8), _nap(rng))
    value = 3 * n + sum(range(children)) + 2 * n + n
    return PlannedFlow("durable", chord([steps, other, loop], then=t.total), value)


def _branching(rng: random.Random) -> PlannedFlow:
    """Jobs with branches that use the same names."""
    n, children = rng.randrange(100), rng.randrange(4)
    branches = t.branching.job(n, _nap(rng), children)
    threads = t.branching_in_thread.job(n, _nap(rng))
    value = 5 * n + 3 + sum(range(children)) + 3 * n + 1
    return PlannedFlow("branches", chord([branches, threads], then=t.total), value)


def _caught(rng: random.Random) -> PlannedFlow:
    """Jobs whose code catches what a step raises."""
    n = rng.randrange(100)
    tasks = rng.sample((t.catches, t.catches_in_thread, t.cuts_off), 2)
    jobs = [task.job(n, _nap(rng)) for task in tasks]
    return PlannedFlow("caught failures", chord(jobs, then=t.total), 4 * n)


def _in_process(rng: random.Random) -> PlannedFlow:
    n = rng.randrange(100)
    return PlannedFlow("step in a process", chain(t.renders.job(n, _nap(rng))), 2 * n)


def _saga(rng: random.Random) -> PlannedFlow:
    n, fails = rng.randrange(100), rng.random() < 0.5
    task, steps = rng.choice(((t.saga, 3), (t.saga_in_thread, 2), (t.wide_saga, 2)))
    canvas: Canvas[Any] = chain(task.job(n, _nap(rng), fails), t.plus.partial(by=1))
    ends = (_FAILED,) if fails else (_COMPLETED,)
    return PlannedFlow("failing saga" if fails else "saga", canvas, steps * n + 1, ends)


def _stopped_saga(rng: random.Random) -> PlannedFlow:
    """A saga that is cancelled, or has a deadline, while it runs or after its end."""
    n, seconds = rng.randrange(100), rng.uniform(0.2, 4.0)
    task, steps = rng.choice(((t.saga, 3), (t.saga_in_thread, 2), (t.wide_saga, 2)))
    if rng.random() < 0.5:
        canvas: Canvas[Any] = chain(task.job(n, _nap(rng), False))
        ends = (_COMPLETED, _CANCELLED)
        return PlannedFlow("cancelled saga", canvas, steps * n, ends, cancel_after=seconds)
    deadline = datetime.now(UTC) + timedelta(seconds=seconds)
    canvas = chain(task.using(deadline=deadline).job(n, _nap(rng), False))
    return PlannedFlow("saga with a deadline", canvas, steps * n, (_COMPLETED, _FAILED))


def _signalled(rng: random.Random) -> PlannedFlow:
    """A job that waits for a signal, and one that sends it, before or after the wait."""
    key, n, m = _key(rng), rng.randrange(100), rng.randrange(100)
    waits = t.waits.using(delay=_short(rng)).job(key, n)
    sends = t.sends.using(delay=_short(rng)).job(key, m)
    return PlannedFlow("signal", chord([waits, sends], then=t.total), n + m)


def _rivals(rng: random.Random) -> PlannedFlow:
    """As many signals as jobs that wait for one of them: each job must get one."""
    key, n = _key(rng), rng.randint(2, 4)
    waits = [t.waits.using(delay=_short(rng)).job(key, 0) for _ in range(n)]
    sends = [t.sends.using(delay=_short(rng)).job(key, 10 + i, n) for i in range(n)]
    return PlannedFlow("rivals", group([*waits, *sends]), None)


def _unsignalled(rng: random.Random) -> PlannedFlow:
    """A wait for a signal that nobody sends."""
    n = rng.randrange(100)
    return PlannedFlow("no signal", chain(t.waits.job(_key(rng), n, _nap(rng) + 0.1)), n)


def _items(rng: random.Random) -> PlannedFlow:
    """A loop that waits for a signal in each item; the signals come in any order."""
    key, n, items = _key(rng), rng.randrange(100), rng.randint(1, 4)
    waits = t.waits_for_items.using(delay=_short(rng)).job(key, n, items, _nap(rng))
    sends = [t.sends.using(delay=_short(rng)).job(f"{key}/{item}", item) for item in range(items)]
    return PlannedFlow("signals of items", chord([waits, *sends], then=t.total), n)


def _race(rng: random.Random) -> PlannedFlow:
    """A signal against a timer."""
    key, n, nap = _key(rng), rng.randrange(100), _nap(rng)
    sends = t.sends.using(delay=round(rng.uniform(0.0, 2 * nap), 3)).job(key, 1)
    return PlannedFlow("race", chord([t.races.job(key, n, nap), sends], then=t.total), 2 * n)


def _nap(rng: random.Random) -> float:
    """A nap (s) that keeps its slot, or gives it back."""
    return round(rng.choice((rng.uniform(0.0, 0.4), rng.uniform(0.5, 2.5))), 3)


def _short(rng: random.Random) -> float:
    return round(rng.choice((0.0, rng.uniform(0.0, 1.0))), 3)


def _key(rng: random.Random) -> str:
    return f"{rng.getrandbits(48):012x}"


#: Shapes, with their share in percent.
FLOW_SHAPES: dict[FlowShape, int] = {
    _nested: 18,
    _wide: 3,
    _chained: 6,
    _graph: 6,
    _failing: 12,
    _called_off: 5,
    _durable: 10,
    _branching: 7,
    _caught: 5,
    _in_process: 1,
    _saga: 8,
    _stopped_saga: 5,
    _signalled: 5,
    _items: 3,
    _race: 2,
    _rivals: 3,
    _unsignalled: 1,
}
