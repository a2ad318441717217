"""Faults of a history: their targets, when each may have cost a lease, and the spans of forgiven losses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import accumulate
from typing import NamedTuple

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.history import History
from penstock.verify.ledger.story import Story

# ── kills by a supervisor ────────────────────────────────────────────────────────────────────────


#: The kind of fault with which a supervisor records that it kills a worker; its cause is the reason.
SUPERVISOR_KILL = "supervisor-kill"
#: A worker that drains has asked for no job for at least this long (ns) when its supervisor kills it.
_DRAINED_FOR = 1_000_000_000


def is_confirmed(kill: Fault, history: History) -> bool:
    """Whether other facts confirm the supervisor's reason.

    Either the worker had leased a job named in the reason for longer than the job's timeout, and the worker
    had neither recorded its end nor settled it. Or the reason names no job: then the worker had to end, and
    asked for none.
    """
    words = set(kill.cause.split())
    named = [story for story in history.stories if story.ref.id in words]
    if named:
        return any(_was_overdue(story, kill) for story in named)
    since = kill.mono - _DRAINED_FOR
    leases = (lease for story in history.stories for lease in story.leases if lease.pid == kill.target)
    return "drain" in words and not any(since < lease.sent < kill.mono for lease in leases)


def _was_overdue(story: Story, kill: Fault) -> bool:
    if story.offer is None or not story.offer.timeout:
        return False
    ended = {
        run.token
        for run in story.runs
        # an end inside of the task's own process may not have reached the worker
        if run.end is not None and not run.end.inside and run.end.mono <= kill.mono
    }
    ended |= {act.asked.token for act in story.acts if act.asked.mono <= kill.mono}
    return any(
        lease.pid == kill.target
        and lease.token not in ended
        and lease.mono + story.offer.timeout * 1_000_000 <= kill.mono
        for lease in story.leases
    )


# ── faults ───────────────────────────────────────────────────────────────────────────────────────


#: Kinds of faults that end a process at once.
ENDS_A_PROCESS = frozenset({"kill", "kill-worker", "kill-producer", SUPERVISOR_KILL})
#: Types of faults that cost no lease.
_HARMLESS = frozenset(
    {
        *("act-retry", "act-run-now", "act-reschedule", "act-cancel", "act-delete", "act-duplicate"),
        *("act-discard", "act-complete", "act-move", "act-edit"),
        *("act-bulk", "remote-quiet", "remote-drain", "remote-stop", "remote-restart"),
        "kill-producer",
        "poison-payload",
        "raise",
        "rename",
        "script-flush",
        "stop-producer",
        "two-versions",
        "unknown-task",
    }
)
#: Types of faults with a known end (`Healed`, or at once). The end of others may be unknown.
_SOON_OVER = frozenset(
    {
        "block-loop",
        "clock",
        "disk-full",
        "eat-memory",
        "failover",
        "half-open",
        "hang",
        "kill-worker",
        "latency",
        "lost-shard",
        "os-exit",
        "power-cut",
        "reset",
        "restart-store",
        "segfault",
        "stop-store",
        "stop-worker",
        "storm",
    }
)
#: Types of faults that kill no process and lose no write. They cost a lease only by preventing its extension,
#: so only after most of its time.
_STARVES = frozenset(
    {
        "clock",
        "disk-full",
        "half-open",
        "latency",
        "lost-shard",
        "reset",
        "stop",
        "stop-store",
        "stop-worker",
    }
)
#: A fault may still have effects this long after its end (ns), while connections and leases are renewed.
_LINGERS = 5_000_000_000
#: How long (ns) after the record of its kill a process may still start a job: the kill is sent after it.
_KILL_TAKES = 500_000_000
#: Assumed duration (ns) of a fault of all processes without a known end; for one process it is endless.
_LONG = 60_000_000_000
_FOR_EVER = 1 << 62


def word_of(fault: Fault) -> str:
    """The type of a fault: the first word of its cause if that is a known type, else its kind."""
    word = fault.cause.partition(" ")[0]
    return word if word in _SOON_OVER or word in _HARMLESS else fault.kind


class LostLease(NamedTuple):
    """A lost lease: its processes, begin, end, start of its run, length (ns; 0: unknown), and queue."""

    pids: Set[int]
    begin: int
    started: int
    end: int
    lease: int = 0
    queue: str = ""

    def costs(self, fault: Fault) -> bool:
        """Whether this fault may have cost the lease."""
        if fault.kind in ENDS_A_PROCESS:
            return fault.mono + _KILL_TAKES >= self.started
        if word_of(fault) in _STARVES and self.end - fault.mono < self.lease // 3:
            return False
        return _until(fault) >= self.begin


class _FaultTimeline:
    """The faults of one process, or those of all processes, in the order of time."""

    __slots__ = ("begins", "faults", "until")

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = faults
        self.begins = [fault.mono for fault in faults]
        #: The latest end among each fault and all before it.
        self.until = list(accumulate(map(_until, faults), max))

    def last(self, lost: LostLease) -> Fault | None:
        """The last fault that may have cost this lease."""
        for i in range(bisect_right(self.begins, lost.end) - 1, -1, -1):
            if self.until[i] < lost.begin:
                return None
            if lost.costs(self.faults[i]):
                return self.faults[i]
        return None

    def next(self, mono: int) -> int | None:
        """When the next fault begins, at or after this moment (mono)."""
        i = bisect_left(self.begins, mono)
        return self.begins[i] if i < len(self.begins) else None

    def covers(self, mono: int) -> bool:
        i = bisect_right(self.begins, mono) - 1
        return i >= 0 and self.until[i] >= mono


class FaultIndex:
    """All faults of a history that may cost a lease, by target.

    A fault of a process also hits its child processes. A fault of some queues hits only their jobs. The
    `immediate` faults lose a lease at once; the others lose it only when it has expired. A worker that its
    supervisor killed counts if the ledger confirms the reason.
    """

    def __init__(self, history: History, *, immediate: bool = False) -> None:
        self._parents = history.parents
        by_target: dict[int, list[Fault]] = defaultdict(list)
        for fault in history.faults:
            if fault.kind == SUPERVISOR_KILL and not is_confirmed(fault, history):
                continue
            if word_of(fault) not in (_HARMLESS | _STARVES if immediate else _HARMLESS):
                by_target[fault.target].append(fault)
        self._everybodys = by_target.pop(0, [])
        self._queues: dict[str, _FaultTimeline] = {}
        self._lines = {target: _FaultTimeline(faults) for target, faults in by_target.items()}
        self._hit: dict[frozenset[int], list[_FaultTimeline]] = {}
        self.immediate = self if immediate else FaultIndex(history, immediate=True)

    def cause(self, lost: LostLease) -> Fault | None:
        """The fault that cost this lease: the last one of its processes, else the last one of all."""
        found = [line.last(lost) for line in self._lines_of(lost.pids)]
        own = [fault for fault in found if fault is not None]
        return max(own, key=lambda fault: fault.mono) if own else self._of_queue(lost.queue).last(lost)

    def next(self, pids: Iterable[int], mono: int, queue: str) -> int | None:
        """When the next fault begins that hits one of these processes, or all, in this queue; None: never."""
        begins = [line.next(mono) for line in (*self._lines_of(pids), self._of_queue(queue))]
        return min((begin for begin in begins if begin is not None), default=None)

    def within(self, pids: Iterable[int], mono: int, queue: str) -> bool:
        """Whether a fault hits these processes, with a job of this queue, at this moment (mono)."""
        lines = (self._of_queue(queue), *self._lines_of(pids))
        return any(line.covers(mono) for line in lines)

    def _of_queue(self, queue: str) -> _FaultTimeline:
        """The faults that hit all processes with jobs of this queue."""
        line = self._queues.get(queue)
        if line is None:
            hit = [fault for fault in self._everybodys if not fault.queues or queue in fault.queues]
            line = self._queues[queue] = _FaultTimeline(hit)
        return line

    def _lines_of(self, pids: Iterable[int]) -> list[_FaultTimeline]:
        if not self._lines:
            return []
        key = frozenset(pids)
        lines = self._hit.get(key)
        if lines is None:
            family = with_parents(key, self._parents)
            lines = self._hit[key] = [self._lines[pid] for pid in family if pid in self._lines]
        return lines


def _until(fault: Fault) -> int:
    if fault.kind in ENDS_A_PROCESS:
        return fault.mono
    if fault.seconds or word_of(fault) in _SOON_OVER:
        return fault.mono + int(fault.seconds * 1e9) + _LINGERS
    return _FOR_EVER if fault.target else fault.mono + _LONG


def with_parents(pids: Iterable[int], parents: dict[int, int]) -> set[int]:
    """These processes and all their ancestors."""
    found: set[int] = set()
    for pid in pids:
        while pid and pid not in found:
            found.add(pid)
            pid = parents.get(pid, 0)
    return found


class ForgivenSpans:
    """Spans (wall clock, ms) whose writes the store may lose.

    A call is given by when it was sent and when it was answered (mono). The store executed it at some moment
    in between, and a process may read the answer late. So its write may be lost if any part of the call lies
    in a span.

    In `undone` spans it may lose all writes but enqueues, which wait for a replica; in `unleased` spans only
    leases.
    """

    def __init__(
        self,
        spans: Iterable[tuple[int, int]],
        history: History,
        undone: Iterable[tuple[int, int]] = (),
        unleased: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._of_leases = list(_monotonic(unleased, history))
        self._of_enqueues = list(_monotonic(spans, history))
        self._spans = [*self._of_enqueues, *_monotonic(undone, history)]

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __call__(self, sent: int, answered: int) -> bool:
        """Whether the write of this call may be lost."""
        return _touches(sent, answered, self._spans)

    def enqueue(self, sent: int, answered: int) -> bool:
        """Whether the enqueue of this call may be lost."""
        return _touches(sent, answered, self._of_enqueues)

    def lease(self, sent: int, answered: int) -> bool:
        """Whether the lease of this call may be lost, and its attempt with it."""
        return _touches(sent, answered, self._of_leases)


def _monotonic(spans: Iterable[tuple[int, int]], history: History) -> Iterator[tuple[int, int]]:
    for begin, end in spans:
        first, last = history.mono(begin), history.mono(end + 1)
        if first is not None and last is not None:
            yield first, last


def _touches(sent: int, answered: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(begin <= answered and sent < end for begin, end in spans)
