"""The audit log: who did which act, to what, from where; filters are in the address, pages go by numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.errors import ConfigError
from penstock.inspector import AuditFilter, AuditPage, ShownEntry, parse_address
from penstock.web.dashboard.formats import exact
from penstock.web.dashboard.view import Card, DashboardPage, View, segment

_MOST_TARGETS = 5
_LONGEST = 19
#: A page reads up to this many pages of the log.
_READS = 4


@dataclass(frozen=True)
class AuditLine:
    """An entry as it is shown: the names in its `to` with links to their pages, if they have one."""

    number: int
    at: int
    who: str
    address: str
    act: str
    targets: list[tuple[str, str]]
    more: int
    facts: list[tuple[str, str]]
    status: int | None


async def show(view: View) -> dict[str, Any]:
    filter = AuditFilter(view.asked("who"), view.asked("act"), view.asked("to"))
    before = view.asked("after")
    number = int(before) if before.isascii() and before.isdecimal() and len(before) <= _LONGEST else None
    found: Card[AuditPage] = Card(error="The audit log has acts on all queues; your rights are on some.")
    if view.may("audit"):
        found = await view.card(
            ("audit", filter, number), lambda: view.inspector.audit(filter, before=number), cost=_READS
        )
    return {
        "found": found,
        "lines": [_line(view, one) for one in found.value.entries] if found.value else [],
        "narrowed": bool(filter.who or filter.act or filter.to),
    }


def _line(view: View, shown: ShownEntry) -> AuditLine:
    entry = shown.entry
    names = [name for name in entry.to.split(", ") if name]
    return AuditLine(
        shown.number,
        shown.at,
        entry.who,
        entry.address,
        entry.act,
        targets=[(name, _link(view, entry.act, name)) for name in names[:_MOST_TARGETS]],
        more=max(0, len(names) - _MOST_TARGETS),
        facts=list(_facts(entry.act, entry.facts)),
        status=entry.status,
    )


def _facts(act: str, facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The facts by name, but not what the name of a bulk act has said."""
    for name, value in sorted(facts.items()):
        if name == "filter":
            yield from _filter_terms(value)
        elif not (act.startswith("bulk.") and (name, value) in (("act", act[5:]), ("state", "running"))):
            yield name, value


def _filter_terms(text: str) -> Iterator[tuple[str, str]]:
    """The fields of a filter, which is stored as JSON."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        yield "filter", text
        return
    for name, value in found.items():
        if isinstance(value, dict) and all(isinstance(one, int) for one in value.values()):
            yield from ((f"{name} {edge}", exact(at)) for edge, at in value.items())
        else:
            each = [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else value
            yield name, ", ".join(map(str, each)) if isinstance(each, list) else str(each)


def _link(view: View, act: str, name: str) -> str:
    """The page of what an act was done to; "" if it has none."""
    kind = act.partition(".")[0]
    if kind == "queue":
        return view.queue_link(name)
    if kind == "workers":
        return view.worker_link(name)
    if kind == "bulk":
        return view.link(f"/bulk/{segment(name)}")
    if kind not in ("jobs", "dead"):
        return ""
    try:
        found = parse_address(name)
    except ConfigError:  # all jobs of a filter, for example
        return ""
    return view.link("/search", q=found) if isinstance(found, str) else view.job_link(found.queue, found.id)


PAGE = DashboardPage(name="audit", path="/audit", title="Audit log", show=show, navigation="Audit", key="a")
