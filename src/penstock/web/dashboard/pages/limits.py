"""Limits, throttles and pauses of all queues: how full each is, who holds it, and who has set it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.job import QUEUED, State
from penstock.inspector import QueueView
from penstock.web.dashboard.view import Card, DashboardPage, View, card

_MOST_SHOWN = 200
#: Of this many queues it is read who holds or has stopped them: it takes some reads for each.
_MOST_ASKED = 8
_ASK_COST = 4
#: Limits that keep jobs from starting or entering; the others bound what is kept.
_STARTS = ("max_running", "rate", "max_size")


@dataclass(frozen=True)
class LimitLine:
    """A queue with a limit.

    - `running`, `queued`: its jobs; `full`: `max_running` keeps it from starting more.
    - `detail`: who holds or has stopped it, read for the first queues that start nothing.
    """

    queue: QueueView
    running: int
    queued: int
    detail: Card[QueueView | None] | None = None

    @property
    def full(self) -> bool:
        """Whether as many jobs run as `max_running` allows."""
        most = self.queue.limits.max_running
        return most is not None and self.running >= most

    @property
    def stopped(self) -> bool:
        """Whether the queue starts nothing now, or accepts nothing."""
        return self.queue.paused or self.queue.closed or self.queue.throttled_until is not None

    @property
    def kept(self) -> list[str]:
        """The names of its limits of what is kept."""
        limits = self.queue.limits
        names = ("keep_finished", "keep_finished_for", "keep_dead", "keep_dead_for")
        return [name for name in names if getattr(limits, name) is not None]

    @property
    def by_operator(self) -> bool:
        """Whether an operator has set one of its limits."""
        return "operator" in self.queue.set_by.values()


async def show(view: View) -> dict[str, Any]:
    found = await card(view.queues())
    lines = [one for one in map(_line, found.value or []) if _has_limit(one)]
    lines.sort(key=lambda one: (not one.stopped, not one.full, one.queue.name))
    part = view.asked("name").casefold()
    matching = [one for one in lines if part in one.queue.name.casefold()]
    shown = [await _asked(view, one, n) for n, one in enumerate(matching[:_MOST_SHOWN])]
    return {
        "found": found,
        "lines": shown,
        "more": max(0, len(matching) - _MOST_SHOWN),
        "part": view.asked("name"),
        "queues": len(found.value or []),
    }


def _line(queue: QueueView) -> LimitLine:
    counts = queue.counts
    queued = sum(counts.get(state, 0) for state in QUEUED)
    return LimitLine(queue, counts.get(State.RUNNING, 0), queued)


def _has_limit(line: LimitLine) -> bool:
    limits = line.queue.limits
    return line.stopped or bool(line.kept) or any(getattr(limits, name) is not None for name in _STARTS)


async def _asked(view: View, line: LimitLine, n: int) -> LimitLine:
    """The line with who holds or has stopped its queue, if the queue starts nothing."""
    if n >= _MOST_ASKED or not (line.full or line.queue.paused or line.queue.throttled_until is not None):
        return line
    name = line.queue.name
    detail = await view.card(("queue", name), lambda: view.inspector.queue(name), cost=_ASK_COST)
    return LimitLine(line.queue, line.running, line.queued, detail)


PAGE = DashboardPage(name="limits", path="/limits", title="Limits", show=show, navigation="Limits", key="l")
