"""Harm that was done: whom it hit, when it can have cost somebody a lease, and what may be undone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.reading.history import History

__all__ = ["ENDS_A_PROCESS", "Forgiven", "Loan", "Troubles", "troubles_of", "with_parents", "word_of"]

#: These end a process in the instant in which they are done.
ENDS_A_PROCESS = frozenset({"kill", "kill-worker", "kill-producer"})
#: These cost nobody a lease.
_HARMLESS = frozenset(
    {
        "kill-producer",
        "poison-payload",
        "raise",
        "script-flush",
        "stop-producer",
        "two-versions",
        "unknown-task",
    }
)
#: These are over when they are said to be over, or at once. Nobody knows of others.
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
#: These kill nobody and undo nothing: a lease is lost to them because nobody could prolong it, which takes
#: most of its time.
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
#: So long after it is over (ns) harm may still be at work: connections, scripts and leases are made anew.
_LINGERS = 5_000_000_000
#: So long (ns) all may suffer from what nobody has said the end of; a process for ever.
_LONG = 60_000_000_000
_FOR_EVER = 1 << 62


def word_of(fault: Fault) -> str:
    """What kind of harm it was: its kind, or a known word with which its cause begins."""
    word = fault.cause.partition(" ")[0]
    return word if word in _SOON_OVER or word in _HARMLESS else fault.kind


class Loan(NamedTuple):
    """A lease that was lost: whose, from when to when, for what run, for how long it was given (ns; 0: nobody
    knows), and in which queue."""

    pids: Set[int]
    begin: int
    started: int
    end: int
    lease: int = 0
    queue: str = ""

    def costs(self, fault: Fault) -> bool:
        """Whether this harm can have cost it; harm that was done after its end cannot."""
        if fault.kind in ENDS_A_PROCESS:
            return fault.mono >= self.started
        if word_of(fault) in _STARVES and self.end - fault.mono < self.lease // 3:
            return False
        return _until(fault) >= self.begin


class _Timeline:
    """The troubles of one process, or of all, in the order of time."""

    __slots__ = ("begins", "faults", "until")

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = faults
        self.begins = [fault.mono for fault in faults]
        #: The latest end of this one and all before it.
        self.until = list(accumulate(map(_until, faults), max))

    def last(self, loan: Loan) -> Fault | None:
        """The last that can have cost it."""
        for i in range(bisect_right(self.begins, loan.end) - 1, -1, -1):
            if self.until[i] < loan.begin:
                return None
            if loan.costs(self.faults[i]):
                return self.faults[i]
        return None

    def next(self, mono: int) -> int | None:
        """When the first one begins from that moment on."""
        i = bisect_left(self.begins, mono)
        return self.begins[i] if i < len(self.begins) else None

    def covers(self, mono: int) -> bool:
        i = bisect_right(self.begins, mono) - 1
        return i >= 0 and self.until[i] >= mono


class Troubles:
    """All harm of a history that can cost a lease, by whom it hit: a process, those it started, or all; what
    hit some queues alone is left out for jobs of others.

    Some are `blows`: what is hit loses its leases at once, or the store forgets them. To the others a lease
    is lost only when its time is over.
    """

    def __init__(self, history: History, *, blows: bool = False) -> None:
        self._parents = history.parents
        by_target: dict[int, list[Fault]] = defaultdict(list)
        for fault in history.faults:
            if word_of(fault) not in (_HARMLESS | _STARVES if blows else _HARMLESS):
                by_target[fault.target].append(fault)
        self._everybodys = by_target.pop(0, [])
        self._queues: dict[str, _Timeline] = {}
        self._lines = {target: _Timeline(faults) for target, faults in by_target.items()}
        self._hit: dict[frozenset[int], list[_Timeline]] = {}
        self.blows = self if blows else Troubles(history, blows=True)

    def cause(self, loan: Loan) -> Fault | None:
        """What cost it: the last harm that was done to one of its processes, else to all."""
        found = [line.last(loan) for line in self._lines_of(loan.pids)]
        own = [fault for fault in found if fault is not None]
        return max(own, key=lambda fault: fault.mono) if own else self._of_queue(loan.queue).last(loan)

    def next(self, pids: Iterable[int], mono: int, queue: str) -> int | None:
        """When something begins next that hits one of them, or all, in this queue; None: nothing does."""
        begins = [line.next(mono) for line in (*self._lines_of(pids), self._of_queue(queue))]
        return min((begin for begin in begins if begin is not None), default=None)

    def within(self, pids: Iterable[int], mono: int, queue: str) -> bool:
        """Whether they are in trouble with a job of this queue at that moment."""
        lines = (self._of_queue(queue), *self._lines_of(pids))
        return any(line.covers(mono) for line in lines)

    def _of_queue(self, queue: str) -> _Timeline:
        """What hit all processes that had to do with this queue."""
        line = self._queues.get(queue)
        if line is None:
            hit = [fault for fault in self._everybodys if not fault.queues or queue in fault.queues]
            line = self._queues[queue] = _Timeline(hit)
        return line

    def _lines_of(self, pids: Iterable[int]) -> list[_Timeline]:
        if not self._lines:
            return []
        key = frozenset(pids)
        lines = self._hit.get(key)
        if lines is None:
            family = with_parents(key, self._parents)
            lines = self._hit[key] = [self._lines[pid] for pid in family if pid in self._lines]
        return lines


@lru_cache(maxsize=1)
def troubles_of(history: History) -> Troubles:
    """Those of this history, sorted once."""
    return Troubles(history)


def _until(fault: Fault) -> int:
    if fault.kind in ENDS_A_PROCESS:
        return fault.mono
    if fault.seconds or word_of(fault) in _SOON_OVER:
        return fault.mono + int(fault.seconds * 1e9) + _LINGERS
    return _FOR_EVER if fault.target else fault.mono + _LONG


def with_parents(pids: Iterable[int], parents: dict[int, int]) -> set[int]:
    """These processes, and those that started them."""
    found: set[int] = set()
    for pid in pids:
        while pid and pid not in found:
            found.add(pid)
            pid = parents.get(pid, 0)
    return found


class Forgiven:
    """Spans of time (ms, by the wall clock) of which a store may forget what it said; of those of `undone`
    all but enqueues, which wait for a replica; of those of `unleased` only who got a lease then."""

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

    def __call__(self, mono: int) -> bool:
        """Whether what was answered then (mono) may be undone."""
        return _lies_in(mono, self._spans)

    def enqueue(self, mono: int) -> bool:
        """Whether a job that a producer was told of then (mono) may be forgotten."""
        return _lies_in(mono, self._of_enqueues)

    def lease(self, mono: int) -> bool:
        """Whether a lease that was granted then (mono) may be forgotten, and its attempt with it."""
        return _lies_in(mono, self._of_leases)


def _monotonic(spans: Iterable[tuple[int, int]], history: History) -> Iterator[tuple[int, int]]:
    for begin, end in spans:
        first, last = history.mono(begin), history.mono(end + 1)
        if first is not None and last is not None:
            yield first, last


def _lies_in(mono: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(begin <= mono < end for begin, end in spans)
