"""The groups of errors: what fails, since when and how often, with links to the jobs behind each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from penstock.core.job import State
from penstock.inspector import ErrorGroupView, JobAct
from penstock.web.dashboard.view import Card, DashboardPage, View

_PAGE = 50
#: The most groups that are read: those of all queues together.
_MOST = 5_000
_DAY = 86_400_000
SPANS = {"1h": (3_600_000, "last hour"), "24h": (_DAY, "last 24 hours"), "7d": (7 * _DAY, "last 7 days")}
ORDERS: dict[str, tuple[str, Callable[[ErrorGroupView], Any]]] = {
    "latest": ("Latest first", lambda one: one.last),
    "most": ("Most first", lambda one: one.count),
    "newest": ("Newest kind first", lambda one: one.first),
}
#: What stands for text that differs from error to error in a group.
_VARYING = re.compile(r"<(?:n|hex|uuid|text)>")


@dataclass(frozen=True)
class ErrorLine:
    """A group of errors in a list.

    - `parts`: its message, where every second part stands for text that varies.
    - `new`: its first error is less than a day old.
    - `jobs`: the path of the list of its jobs; `failed`: of those that are dead or wait for a retry; `retry`:
      of the dry run of a retry of these, "" if the visitor may not retry them, or if a search for a single
      task does not find them all.
    """

    group: ErrorGroupView
    parts: list[str]
    new: bool
    jobs: str
    failed: str
    retry: str


async def show(view: View) -> dict[str, Any]:
    found = await _found(view)
    order = view.asked("order", "latest")
    groups = sorted(found.value or [], key=ORDERS.get(order, ORDERS["latest"])[1], reverse=True)
    matching = [one for one in groups if _matches(view, one)]
    start = _start(matching, view.asked("after"))
    shown = matching[start : start + _PAGE]
    return {
        "found": found,
        "lines": error_lines(view, shown),
        "matching": len(matching),
        "next": _name(shown[-1]) if start + _PAGE < len(matching) else None,
        "orders": {name: says for name, (says, _) in ORDERS.items()},
        "spans": {name: says for name, (_, says) in SPANS.items()},
        "queue_names": sorted({one.queue for one in groups}),
        "task_names": sorted({one.task for one in groups}),
        "narrowed": any(view.asked(name) for name in ("text", "task", "queue", "since")),
    }


async def _found(view: View) -> Card[list[ErrorGroupView]]:
    read = view.inspector.statistics.errors
    found = await view.card("errors", lambda: read(limit=_MOST), cost=2)
    return Card([one for one in found.value or [] if view.sees(one.queue)], found.error)


def error_lines(view: View, groups: Sequence[ErrorGroupView]) -> list[ErrorLine]:
    """Groups as they are shown, with links to their jobs."""
    lines = []
    for one in groups:
        task = one.task if one.kind and not one.renamed else None
        about = {"queue": one.queue, "task": task, "text": searched_text(one)}
        failed = {**about, "state": [State.DEAD.value, State.RETRYABLE.value]}
        may, first = view.may(JobAct.RETRY, one.queue) and not one.renamed, one.first
        lines.append(
            ErrorLine(
                one,
                parts=re.split(r"(<(?:n|hex|uuid|text)>)", one.message),
                new=view.now - first < _DAY,
                jobs=view.link("/jobs", **about),
                failed=view.link("/jobs", **failed),
                retry=view.link("/jobs/change", act=JobAct.RETRY.value, **failed) if may else "",
            )
        )
    return lines


def searched_text(group: ErrorGroupView) -> str:
    """The longest text that all errors of a group have, by which a search finds their jobs."""
    first, *others = _VARYING.split(group.message.removesuffix("…"))
    return max((f"{group.kind}: {first}".strip(), *(part.strip() for part in others)), key=len)


def _matches(view: View, group: ErrorGroupView) -> bool:
    length, _ = SPANS.get(view.asked("since"), (None, ""))
    text = view.asked("text").casefold()
    return (
        view.asked("queue") in ("", group.queue)
        and view.asked("task") in ("", group.task)
        and text in f"{group.kind}: {group.message}".casefold()
        and (length is None or view.now - group.last < length)
    )


def _start(groups: Sequence[ErrorGroupView], after: str) -> int:
    """Where a page begins. Groups move when they have new errors, so its cursor is the name of a group."""
    return next((n + 1 for n, one in enumerate(groups) if _name(one) == after), 0) if after else 0


def _name(group: ErrorGroupView) -> str:
    facts = "\0".join((group.queue, group.task, group.kind, group.message))
    return blake2b(facts.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


PAGE = DashboardPage(name="errors", path="/errors", title="Errors", show=show, navigation="Errors", key="e")
