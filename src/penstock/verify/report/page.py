"""Renders the report of a run as one HTML file that needs no network and no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from penstock.verify.report.timeline import timeline

__all__ = ["page"]

_Report = Mapping[str, Any]

#: The large numbers of the page, and whether a number above 0 is bad.
_CARDS = {
    "enqueued": False,
    "completed": False,
    "lost": True,
    "duplicated": False,
    "unexplained": True,
    "late": True,
}

_NUMBERS = {
    "offered": "jobs that producers wanted to enqueue",
    "enqueued": "were acknowledged: each of them must end",
    "refused": "were refused with an error, and are not in the store",
    "unknown": "may be stored or not: the answer was lost, or the producer was killed",
    "completed": "were completed",
    "cancelled": "were cancelled, or expired",
    "dead": "are dead, as their own options require",
    "deleted": "were deleted on purpose",
    "unfinished": "had not ended when the run was over",
    "lost": "were acknowledged and are missing",
    "forgiven": "are missing, and the store's own settings allow that",
    "duplicated": "runs beyond the first of an attempt that had started",
    "unexplained": "of those have no fault that explains them",
    "early": "started before their due time",
    "late": "started more than a second after their due time, without a fault that explains it",
    "stale": "outcomes of a lost lease arrived and were refused",
}

_FLOWS = {
    "stored": "flows were stored",
    "completed": "were completed",
    "failed": "have failed, as their jobs require",
    "cancelled": "were cancelled",
    "hanging": "had not ended when the run was over",
    "nodes": "nodes in all flows",
    "suspended": "suspensions of jobs that waited for a timer, a signal or jobs of their own",
    "steps": "durable steps were stored",
    "signals": "signals were accepted",
    "undone": "steps were undone",
}


_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>penstock verify: {title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def page(report: _Report) -> str:
    """The report as a complete HTML document. All values are escaped."""
    parts = [
        _head(report),
        _cards(report),
        _section("Findings", _findings(report.get("findings") or ())),
        _section("Timeline", timeline(report)),
        _section("Jobs", _numbers(report)),
        _section("Flows", _flows(report)),
        _section("Faults", _faults(report)),
        _section("Recovery times", _recoveries(report)),
        _section("Runs beyond the first", _duplicates(report.get("duplicates") or ())),
    ]
    style = resources.files("penstock.verify.report").joinpath("page.css").read_text("utf-8")
    return _DOCUMENT.format(title=_text(_verdict(report)), style=style, body="\n".join(filter(None, parts)))


def _head(report: _Report) -> str:
    kept = _verdict(report) == "kept"
    said = "Every guarantee was kept" if kept else "A guarantee was broken"
    facts = [
        ("on", f"{report.get('url', '?')} ({report.get('store', '?')})"),
        ("for", f"{float(report.get('seconds') or 0):g} s"),
        ("from", report.get("started_at", "?")),
        ("seed", report.get("seed", "?")),
    ]
    told = " · ".join(f"{name} <code>{_text(value)}</code>" for name, value in facts)
    reasons = "".join(f"<li>{_text(reason)}</li>" for reason in report.get("reasons") or ())
    look = "kept" if kept else "broken"
    return f'<h1 class="{look}">{said}</h1>\n<p class="faint">{told}</p>' + (
        f'\n<ul class="reasons">{reasons}</ul>' if reasons else ""
    )


def _verdict(report: _Report) -> str:
    return str(report.get("verdict", "broken"))


def _cards(report: _Report) -> str:
    cards = ""
    for name, zero in _CARDS.items():
        number = report.get(name)
        look = "" if not zero or number is None else "broken" if number else "kept"
        cards += f'<div class="card {look}"><b>{_number(number)}</b>{name}</div>'
    return f'<div class="cards">{cards}</div>'


def _numbers(report: _Report) -> str:
    rows = [(name, _number(report[name]), said) for name, said in _NUMBERS.items() if name in report]
    return _table(("jobs", "n", ""), rows)


def _flows(report: _Report) -> str:
    flows: Mapping[str, Any] = report.get("flows") or {}
    if not flows.get("stored"):
        return ""
    return _table(("flows", "n", ""), [(name, _number(flows[name]), said) for name, said in _FLOWS.items()])


def _faults(report: _Report) -> str:
    injected: Mapping[str, int] = report.get("injected") or {}
    asked: Sequence[str] = report.get("asked") or ()
    items = ""
    for kind in [*asked, *(kind for kind in injected if kind not in asked)]:
        n = injected.get(kind, 0)
        items += f"<li>{_text(kind)} × {_number(n)}</li>" if n else _never(kind)
    return f'<ul class="kinds">{items}</ul>' if items else ""


def _never(kind: str) -> str:
    return f'<li class="broken">{_text(kind)}: requested, and never happened</li>'


def _recoveries(report: _Report) -> str:
    waits = {
        "recovery": "from the kill of a worker until its jobs ran again",
        "recovery_lone": "… of a worker without a supervisor",
        "recovery_supervised": "… of a worker with a supervisor, or of the supervisor",
        "restart": "from the return of the store until the first job started",
    }
    rows = [
        (said, *(_number(found.get(name)) for name in ("n", "p50", "p99", "max")))
        for key, said in waits.items()
        if (found := report.get(key)) and found.get("n")
    ]
    return _table(("seconds", "n", "p50", "p99", "max"), rows)


def _findings(findings: Sequence[_Report]) -> str:
    rows = [
        tuple(finding.get(name, "") for name in ("promise", "says", "queue", "id")) for finding in findings
    ]
    return _table(("guarantee", "what is wrong", "queue", "job"), rows)


def _duplicates(duplicates: Sequence[_Report]) -> str:
    if not duplicates:
        return ""
    causes = Counter(str(duplicate.get("cause") or "unexplained") for duplicate in duplicates)
    told = " · ".join(f"{_text(cause)} × {n:,}" for cause, n in causes.most_common())
    rows = [
        (
            duplicate.get("cause") or "unexplained",
            _number(duplicate.get("fault_at")),
            f"{duplicate.get('attempt_before', '?')} → {duplicate.get('attempt', '?')}",
            f"{_number(duplicate.get('leased_from'))} – {_number(duplicate.get('leased_until'))}",
            *(duplicate.get(name, "") for name in ("task", "queue", "id")),
        )
        for duplicate in duplicates
    ]
    heads = ("cause", "fault at", "attempt", "leased", "task", "queue", "job")
    return f'<p class="note">By cause: {told}</p>\n{_table(heads, rows)}'


# ── building blocks ──────────────────────────────────────────────────────────────────────────────

_LONG = 20  # a table with more rows scrolls in its own area
_FIGURES = {"n", "p50", "p99", "max", "fault at"}


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>\n{body}" if body else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with escaped cells; empty if there are no rows."""
    figures = [head in _FIGURES for head in heads]
    head = "".join(_cell("th", name, figure) for name, figure in zip(heads, figures, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', cell, figure) for cell, figure in zip(row, figures, strict=True))}</tr>\n"
        for row in rows
    )
    if not body:
        return ""
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"
    look = "scroll long" if body.count("<tr>") > _LONG else "scroll"
    return f'<div class="{look}">{table}</div>'


def _cell(tag: str, content: Any, figure: bool) -> str:
    return f"<{tag}{' class=n' if figure else ''}>{_text(content)}</{tag}>"


def _number(value: Any) -> str:
    """Format a number for people; a dash for None; text unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def _text(value: Any) -> str:
    return escape(str(value))
