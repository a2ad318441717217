"""Compares what Prometheus is shown of a store with what the store itself counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from penstock.stores.contract import QueueInfo, QueueStats
from penstock.verify.ledger.rules.faces import counted
from penstock.verify.ledger.verdict import Violation

__all__ = ["scraped"]

_SAMPLE = re.compile(
    r"^penstock_(?:queue_jobs|jobs_(?P<total>[a-z]+)_total)"
    r'\{pool="[^"]*",queue="(?P<queue>(?:[^"\\]|\\.)*)"(?:,state="(?P<state>[a-z]+)")?\} (?P<value>\d+)$',
    re.MULTILINE,
)


def scraped(metrics: str, queues: Iterable[QueueInfo], stats: Iterable[QueueStats]) -> Iterator[Violation]:
    """Check that the metrics show each queue's jobs by state, and its totals, as the store counts them.

    `counters` compares the store with the ledger, so both together compare the metrics with the ledger.
    """
    shown = {
        (_unescaped(found["queue"]), found["total"] or found["state"]): int(found["value"])
        for found in _SAMPLE.finditer(metrics)
    }
    numbers = counted(queues, stats)
    for name, what in sorted(shown.keys() | numbers.keys()):
        there, here = shown.get((name, what), "nothing"), numbers.get((name, what), "nothing")
        if there != here:
            yield Violation("counters", f"the metrics show {what} {there}; the store counts {here}", name)


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)
