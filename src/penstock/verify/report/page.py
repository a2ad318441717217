"""The report of a run as a page to look at: one HTML file that needs no network and no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from penstock.verify.report.timeline import timeline

__all__ = ["page"]

_Report = Mapping[str, Any]

#: What is shown large; and whether anything but 0 of it is bad.
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
    "enqueued": "were acknowledged: each of them is owed an end",
    "refused": "were refused with an error, and are not there",
    "unknown": "producers never learned (EnqueueUnknown, or they were killed): either is right",
    "completed": "ended well",
    "cancelled": "ended because somebody cancelled them, or they expired",
    "dead": "failed for good, as their own options have it",
    "deleted": "were deleted on purpose",
    "unfinished": "had no end when the run was over",
    "lost": "were acknowledged and are gone",
    "forgiven": "are gone, and the store's own settings allow that",
    "duplicated": "runs beyond the first of an attempt that had started",
    "unexplained": "of those have no fault to blame",
    "early": "started before their time",
    "late": "started more than a second after their time, with no fault to blame",
    "stale": "outcomes of a lost lease came and were turned away",
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
    """A whole HTML document. Whatever the report says is text in it, never markup."""
    parts = [
        _head(report),
        _cards(report),
        _section("Findings", _findings(report.get("findings") or ())),
        _section("What happened when", timeline(report)),
        _section("Jobs", _numbers(report)),
        _section("Faults", _faults(report)),
        _section("How soon it went on", _recoveries(report)),
        _section("Runs beyond the first", _duplicates(report.get("duplicates") or ())),
    ]
    style = resources.files("penstock.verify.report").joinpath("page.css").read_text("utf-8")
    return _DOCUMENT.format(title=_text(_verdict(report)), style=style, body="\n".join(filter(None, parts)))


def _head(report: _Report) -> str:
    kept = _verdict(report) == "kept"
    said = "Every promise was kept" if kept else "A promise was broken"
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


def _faults(report: _Report) -> str:
    injected: Mapping[str, int] = report.get("injected") or {}
    asked: Sequence[str] = report.get("asked") or ()
    items = ""
    for kind in [*asked, *(kind for kind in injected if kind not in asked)]:
        n = injected.get(kind, 0)
        items += f"<li>{_text(kind)} × {_number(n)}</li>" if n else _never(kind)
    return f'<ul class="kinds">{items}</ul>' if items else ""


def _never(kind: str) -> str:
    return f'<li class="broken">{_text(kind)}: asked for, and never happened</li>'


def _recoveries(report: _Report) -> str:
    waits = {
        "recovery": "after a worker was killed, until what it held ran again",
        "recovery_lone": "… where it had no supervisor",
        "recovery_supervised": "… where it had one, or that was killed",
        "restart": "after the store was back, until the first job started",
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
    return _table(("promise", "what is wrong", "queue", "job"), rows)


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

_LONG = 20  # rows; a table that has more gets a window of its own
_FIGURES = {"n", "p50", "p99", "max", "fault at"}


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>\n{body}" if body else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose cells are escaped here; nothing where there are no rows."""
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
    """As people write it; a dash for what is not known, and words as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def _text(value: Any) -> str:
    return escape(str(value))
