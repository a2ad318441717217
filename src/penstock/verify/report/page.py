"""Renders the report of a run as one HTML file that needs no network and no script.

The timeline is a chart of jobs per second, and below it one row of faults per type. The drawing stretches
with the page: x runs from 0 to 1000 over the whole run. All labels are HTML text beside the drawing, so they
stay readable on a phone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any

from penstock.verify.faults.plan import FAULT_TYPES

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
    "effects": "effects of steps and undos outside of the store",
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
    listed = [*(report.get("reasons") or ()), *(f"left out: {one}" for one in report.get("left_out") or ())]
    reasons = "".join(f"<li>{_text(one)}</li>" for one in listed)
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


# ── the timeline ─────────────────────────────────────────────────────────────────────────────────


_WIDE, _HIGH = 1000, 100
_POINTS = 600  # more points could not be distinguished
_MARKS = 300

#: Areas of faults, in the order of the rows.
_LABELS = {
    "processes": "faults of processes",
    "store": "faults of the store",
    "network": "network faults",
    "tasks": "faults of tasks",
    "acts": "acts of an operator",
}


def timeline(report: Mapping[str, Any]) -> str:
    """HTML with inline SVG; empty if there is nothing to draw."""
    samples: Sequence[Mapping[str, Any]] = report.get("throughput") or ()
    faults: Sequence[Mapping[str, Any]] = report.get("faults") or ()
    if not samples and not faults:
        return ""
    ends = [
        float(report.get("seconds") or 0),
        *(float(sample["at"]) + 1 for sample in samples),
        *map(_end, faults),
    ]
    span = max(max(ends), 1.0)
    rows = {kind: list(those) for kind, those in groupby(sorted(faults, key=_order), key=_kind)}
    parts = [_legend({_area(kind) for kind in rows}), _chart(samples, faults, span)]
    parts += [_row(kind, those, span) for kind, those in rows.items()]
    return "\n".join([*parts, _times(span)])


# ── jobs per second ──────────────────────────────────────────────────────────────────────────────


def _chart(samples: Sequence[Mapping[str, Any]], faults: Iterable[Mapping[str, Any]], span: float) -> str:
    lines = {
        name: _thinned([(sample["at"], sample.get(name, 0)) for sample in samples])
        for name in ("enqueued", "completed")
    }
    top = _round_up(max((rate for points in lines.values() for _, rate in points), default=0))
    grid = "".join(f'<line x1="0" x2="{_WIDE}" y1="{y}" y2="{y}"/>' for y in (0, _HIGH / 2))
    shade = "".join(
        _mark(fault, span, _HIGH) for fault in faults if _area(_kind(fault)) not in ("tasks", "acts")
    )
    drawn = "".join(
        f'<polyline class="{look}" points="{_points(lines[name], span, top)}"/>'
        for name, look in (("enqueued", "in"), ("completed", "out"))
    )
    axis = "".join(f"<span>{text}</span>" for text in (f"{top:,}/s", f"{top / 2:,g}/s", "0"))
    return (
        f'<div class="row chart"><div class="axis">{axis}</div>'
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="jobs enqueued and completed per second"><g class="grid">{grid}</g>'
        f'<g class="shade">{shade}</g>{drawn}</svg></div>'
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Average neighbouring points until there are at most `_POINTS`."""
    n = -(-len(points) // _POINTS) or 1
    areas = [points[start : start + n] for start in range(0, len(points), n)]
    return [(area[0][0], sum(rate for _, rate in area) / len(area)) for area in areas]


def _points(points: Iterable[tuple[float, float]], span: float, top: float) -> str:
    return " ".join(f"{_x(at + 0.5, span)},{_HIGH - _HIGH * rate / top:.1f}" for at, rate in points)


def _round_up(rate: float) -> int:
    """The next round number that is not below `rate`."""
    step = 1
    while True:
        for factor in (1, 2, 3, 4, 6, 8):
            if rate <= step * factor:
                return step * factor
        step *= 10


# ── the faults ───────────────────────────────────────────────────────────────────────────────────


def _row(kind: str, faults: Sequence[Mapping[str, Any]], span: float) -> str:
    marks = "".join(_mark(fault, span, _HIGH, titled=True) for fault in _merged(faults, span))
    name = f'<div>{escape(kind)} <span class="faint">× {len(faults):,}</span></div>'
    return (
        f'<div class="row faults {_area(kind)}">{name}'
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(kind)}">{marks}</svg></div>'
    )


def _mark(fault: Mapping[str, Any], span: float, high: int, *, titled: bool = False) -> str:
    """A bar as long as the fault, and a line at its begin, which is visible at any width."""
    begin, long = _at(fault), _long(fault)
    bar = f'<rect x="{_x(begin, span)}" width="{_x(long, span)}" y="0" height="{high}"/>' if long else ""
    line = f'<line x1="{_x(begin, span)}" x2="{_x(begin, span)}" y1="0" y2="{high}"/>'
    if titled:
        return f"<g><title>{escape(_title(fault))}</title>{bar}{line}</g>"
    return f'<g class="{_area(_kind(fault))}">{bar}{line}</g>'


def _merged(faults: Sequence[Mapping[str, Any]], span: float) -> list[Mapping[str, Any]]:
    """Merge faults that would overlap in the drawing."""
    if len(faults) <= _MARKS:
        return list(faults)
    found: list[Mapping[str, Any]] = []
    for _, those in groupby(sorted(faults, key=_at), key=lambda fault: int(_at(fault) / span * _MARKS)):
        area = list(those)
        seconds = max(map(_end, area)) - _at(area[0])
        found.append({**area[0], "seconds": seconds, "note": f"{len(area)} of them"})
    return found


def _title(fault: Mapping[str, Any]) -> str:
    lasted = f" for {_long(fault):g} s" if _long(fault) else ""
    rest = " · ".join(str(fault[name]) for name in ("target", "note") if fault.get(name))
    return f"{_kind(fault)} at {_at(fault):.1f} s{lasted}" + (f": {rest}" if rest else "")


def _legend(areas: set[str]) -> str:
    items = [
        '<li class="in"><i class="thin"></i>enqueued</li>',
        '<li class="out"><i class="thin"></i>completed</li>',
    ]
    items += [f'<li class="{area}"><i></i>{label}</li>' for area, label in _LABELS.items() if area in areas]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _times(span: float) -> str:
    texts = "".join(f"<span>{_clock(span * part / 4)}</span>" for part in range(5))
    return f'<div class="row"><div></div><div class="times">{texts}</div></div>'


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours = f"{whole // 3600}:" if whole >= 3600 else ""
    return f"{hours}{whole % 3600 // 60:0{2 if hours else 1}}:{whole % 60:02}"


def _kind(fault: Mapping[str, Any]) -> str:
    return str(fault.get("kind", "?"))


def _area(kind: str) -> str:
    fault = FAULT_TYPES.get(kind)
    if fault is None:
        return "tasks"
    return "network" if fault.proxy else fault.area


def _order(fault: Mapping[str, Any]) -> tuple[int, str, float]:
    """Sort key: area, then type, then time."""
    kind = _kind(fault)
    return list(_LABELS).index(_area(kind)), kind, _at(fault)


def _at(fault: Mapping[str, Any]) -> float:
    return float(fault.get("at") or 0)


def _long(fault: Mapping[str, Any]) -> float:
    return float(fault.get("seconds") or 0)


def _end(fault: Mapping[str, Any]) -> float:
    return _at(fault) + _long(fault)


def _x(at: float, span: float) -> str:
    return f"{_WIDE * at / span:.1f}"
