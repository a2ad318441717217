"""Compares what operators are shown of a store with what the store itself counts.

`counters` compares the store with the ledger. So both together compare each face with the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.stores.contract import QueueInfo, QueueStats, StatsRow
from penstock.verify.ledger.verdict import Violation

__all__ = ["TOTALS", "Numbers", "counted", "faces", "numbers_of", "tasks_of_queues"]

#: The totals of a queue.
TOTALS = ("enqueued", "processed", "failed")
#: Numbers by queue, and state or total.
Numbers = Mapping[tuple[str, str], int]


def counted(queues: Iterable[QueueInfo], stats: Iterable[QueueStats]) -> Numbers:
    """The jobs of each queue by state, and its totals, as the store counts them."""
    found = {(one.name, total): int(getattr(one, total)) for one in stats for total in TOTALS}
    return found | {(info.name, state.value): n for info in queues for state, n in info.counts.items()}


def numbers_of(queues: Iterable[Mapping[str, Any]], stats: Iterable[Mapping[str, Any]]) -> Numbers:
    """The same, from the views of an inspector as JSON; what is 0 is left out."""
    found = {(one["name"], total): int(one[total]) for one in stats for total in TOTALS}
    found |= {(one["name"], state): int(n) for one in queues for state, n in one["counts"].items()}
    return {what: n for what, n in found.items() if n}


def faces(shown: Mapping[str, Numbers], here: Numbers) -> Iterator[Violation]:
    """Check that each face shows what the store counts: `here`."""
    there_is = {what: n for what, n in here.items() if n}
    for face, numbers in shown.items():
        for queue, what in sorted(numbers.keys() | there_is.keys()):
            there, n = numbers.get((queue, what), 0), there_is.get((queue, what), 0)
            if there != n:
                says = f"{face} shows {what} {there}; the store counts {n}"
                yield Violation("counters", says, queue)


def tasks_of_queues(rows: Iterable[StatsRow], stats: Iterable[QueueStats]) -> Iterator[Violation]:
    """Check that the statistics of tasks count no more attempts than their queue.

    They may count less: a worker that is killed loses its last seconds, and a supervisor reports none.
    """
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sums[row.queue, "processed"] += row.stats.processed
        sums[row.queue, "failed"] += row.stats.failed
    for one in stats:
        for what in ("processed", "failed"):
            n, total = sums[one.name, what], getattr(one, what)
            if n > total:
                says = f"the statistics of its tasks count {what} {n}; the queue counts {total}"
                yield Violation("counters", says, one.name)
