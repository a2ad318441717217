"""A verdict as numbers for a report: plain JSON values, times in seconds since the beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.verify.ledger.reading.history import History
from penstock.verify.ledger.rules.faults import word_of
from penstock.verify.ledger.verdict import Duplicate, Verdict, Violation

__all__ = ["summary"]

_COUNTS = (
    "offered",
    "enqueued",
    "refused",
    "unknown",
    "completed",
    "cancelled",
    "dead",
    "deleted",
    "unfinished",
    "lost",
    "forgiven",
    "duplicated",
    "unexplained",
    "early",
    "late",
    "stale",
)
#: At most this many findings are listed, some for each guarantee: a broken store may have one per job.
_FINDINGS = 200


def summary(history: History, verdict: Verdict, *, began: int) -> dict[str, Any]:
    """The numbers of a run that began at `began` (ms since the epoch)."""
    return {
        "injected": dict(sorted(verdict.injected.items())),
        "faults": [
            {
                "at": _since(began, history.at(fault)),
                "kind": word_of(fault),
                "target": str(fault.target) if fault.target > 0 else "",
                "note": fault.cause,
                "seconds": round(fault.seconds, 3),
            }
            for fault in history.faults
        ],
        **{name: getattr(verdict, name) for name in _COUNTS},
        "duplicates": [_duplicate(one, began) for one in verdict.duplicates],
        "recovery": _spread(verdict.recoveries),
        "restart": _spread(verdict.restarts),
        "throughput": _throughput(history, began),
        "findings": [_finding(one) for one in verdict.some(_FINDINGS)],
        "verdict": "kept" if verdict.ok else "broken",
        "reasons": [
            f"{n} × {promise}" for promise, n in sorted(Counter(f.promise for f in verdict.findings).items())
        ],
    }


def _duplicate(one: Duplicate, began: int) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "id": one.id,
        "task": one.task,
        "attempt_before": one.attempt_before,
        "attempt": one.attempt,
        "cause": one.cause,
        "fault_at": None if one.fault_at is None else _since(began, one.fault_at),
        "leased_from": _since(began, one.leased_from),
        "leased_until": _since(began, one.leased_until),
    }


def _finding(one: Violation) -> dict[str, str]:
    return {"promise": one.promise, "says": one.says, "queue": one.queue, "id": one.id}


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Number, median, 99th percentile and maximum of sorted values."""
    if not values:
        return {"n": 0, "p50": None, "p99": None, "max": None}
    most = len(values) - 1
    p50, p99 = (round(values[round(most * share)], 3) for share in (0.5, 0.99))
    return {"n": len(values), "p50": p50, "p99": p99, "max": round(values[-1], 3)}


def _throughput(history: History, began: int) -> list[dict[str, int]]:
    """Jobs acknowledged and completed in each second."""
    enqueued: Counter[int] = Counter()
    completed: Counter[int] = Counter()
    for story in history.stories:
        at = story.acknowledged_at
        if at is not None:
            enqueued[_second(history, at, began)] += 1
        done = next((a for a in story.acts if a.applied and a.asked.state == "completed"), None)
        if done is not None:
            completed[_second(history, done.answered, began)] += len(story.members) or 1
    last = max([*enqueued, *completed], default=-1)
    return [{"at": s, "enqueued": enqueued[s], "completed": completed[s]} for s in range(last + 1)]


def _second(history: History, mono: int, began: int) -> int:
    at = history.wall(mono)
    return 0 if at is None else max(0, (at - began) // 1_000)


def _since(began: int, at: int) -> float:
    return round((at - began) / 1_000, 3)
