"""The timeline of a run: a chart of jobs per second, and below it one row of faults per type.

The drawing stretches with the page: x runs from 0 to 1000 over the whole run. All labels are HTML text beside
the drawing, so they stay readable on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

__all__ = ["timeline"]

_WIDE, _HIGH = 1000, 100
_POINTS = 600  # more points could not be distinguished
_MARKS = 300

#: Fault types by area; all other types are faults of tasks.
_AREAS = {
    "processes": ("kill-worker", "stop-worker", "kill-producer", "stop-producer", "storm", "clock"),
    "store": (
        *("restart-store", "stop-store", "power-cut", "script-flush"),
        *("failover", "lost-shard", "disk-full"),
    ),
    "network": ("reset", "half-open", "latency"),
    "acts": (
        *("act-retry", "act-run-now", "act-reschedule", "act-cancel", "act-delete", "act-duplicate"),
        *("act-discard", "act-move", "act-edit"),
        *("act-bulk", "remote-quiet", "remote-drain", "remote-stop", "remote-restart"),
    ),
}
_AREA_OF = {kind: area for area, kinds in _AREAS.items() for kind in kinds}
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
    return _AREA_OF.get(kind, "tasks")


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
