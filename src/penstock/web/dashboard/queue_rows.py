"""Rows of a table of queues, with links to the jobs behind each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.job import QUEUED, TERMINAL, State
from penstock.inspector import QueueView
from penstock.web.dashboard.pulse import Depth
from penstock.web.dashboard.view import View

__all__ = ["QueueLine", "queue_rows"]

_LATER = tuple(state for state in State if state in QUEUED and state is not State.AVAILABLE)


@dataclass(frozen=True)
class QueueLine:
    """A queue in a table. `later`: queued jobs that are not ready; `ready_line`: depths for a small chart."""

    queue: QueueView
    ready: int
    running: int
    later: int
    dead: int
    finished: int
    ready_line: list[float]

    @property
    def flags(self) -> list[tuple[str, str]]:
        """What is unusual, as the class of a badge and a word."""
        found = [("paused", "paused")] if self.queue.paused else []
        found += [("closed", "closed")] if self.queue.closed else []
        found += [("throttled", "throttled")] if self.queue.throttled_until is not None else []
        return found + ([("away", "away")] if self.queue.away else [])


def queue_rows(view: View, queues: Sequence[QueueView]) -> list[QueueLine]:
    """The rows of these queues; those with ready and dead jobs first."""
    recent = list(view.shared.pulse.depths)[-60:]
    rows = [_row(recent, queue) for queue in queues]
    return sorted(rows, key=lambda row: (-(row.ready + row.running), -row.dead, row.queue.name))


def _row(recent: Sequence[Depth], queue: QueueView) -> QueueLine:
    counts = queue.counts
    line = [float(one.ready.get(queue.name, 0)) for one in recent]
    ended = sum(counts.get(state.value, 0) for state in TERMINAL)
    dead = counts.get(State.DEAD.value, 0)
    return QueueLine(
        queue,
        ready=counts.get(State.AVAILABLE.value, 0),
        running=counts.get(State.RUNNING.value, 0),
        later=sum(counts.get(state.value, 0) for state in _LATER),
        dead=dead,
        finished=ended - dead,
        ready_line=line,
    )
