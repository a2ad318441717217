"""The page of a run shows the report, without a network or a script."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.verify.ledger.verdict import FlowNumbers
from penstock.verify.report.page import page

KINDS = [
    "kill-worker",
    "stop-worker",
    "kill-producer",
    "stop-producer",
    "storm",
    "restart-store",
    "stop-store",
    "reset",
    "half-open",
    "latency",
    "script-flush",
    "failover",
    "lost-shard",
    "disk-full",
    "clock",
    "raise",
    "hang",
    "block-loop",
    "eat-memory",
    "os-exit",
    "segfault",
    "unknown-task",
    "poison-payload",
    "two-versions",
    "rename",
]


def report(**changes: Any) -> dict[str, Any]:
    """One as a run of five minutes makes it."""
    draw = random.Random(7)
    faults = []
    for kind in KINDS:
        for _ in range(draw.randrange(2, 14)):
            lasted = draw.choice([0, 2.5, 9]) if kind.startswith(("stop", "half", "lat", "disk")) else 0
            faults.append(
                {
                    "at": draw.uniform(0, 290),
                    "kind": kind,
                    "target": "worker 3",
                    "note": "",
                    "seconds": lasted,
                }
            )
    samples = [
        {"at": at, "enqueued": 200 + draw.randrange(40), "completed": draw.choice([0, 190, 210, 260, 300])}
        for at in range(300)
    ]
    injected = {kind: sum(fault["kind"] == kind for fault in faults) for kind in KINDS}
    told: dict[str, Any] = {
        "version": 1,
        "url": "redis://…@localhost:6379/1",
        "store": "redis",
        "seed": 7,
        "seconds": 300.0,
        "started_at": "2026-01-02T03:04:05Z",
        "asked": KINDS,
        "injected": injected,
        "faults": faults,
        "offered": 61_234,
        "enqueued": 61_003,
        "refused": 180,
        "unknown": 51,
        "completed": 59_870,
        "cancelled": 431,
        "dead": 702,
        "deleted": 0,
        "unfinished": 0,
        "lost": 0,
        "forgiven": 3,
        "duplicated": 118,
        "unexplained": 0,
        "early": 0,
        "late": 0,
        "stale": 44,
        "flows": dict.fromkeys(FlowNumbers.__struct_fields__, 0) | {"stored": 1_732, "hanging": 0},
        "duplicates": [duplicate(n, draw) for n in range(118)],
        "recovery": {"n": 41, "p50": 0.412, "p99": 2.8, "max": 3.19},
        "restart": {"n": 6, "p50": 0.2, "p99": 0.9, "max": 0.9},
        "throughput": samples,
        "findings": [],
        "verdict": "kept",
        "reasons": [],
    }
    return told | changes


def duplicate(n: int, draw: random.Random) -> dict[str, Any]:
    at = draw.uniform(0, 290)
    return {
        "queue": "default",
        "id": f"01a200e4-e040-7139-850a-{n:012}",
        "task": "penstock.verify.workload.tasks:slow",
        "attempt_before": 1,
        "attempt": 2,
        "cause": draw.choice(["kill-worker", "stop-worker", "restart-store"]),
        "fault_at": round(at, 3),
        "leased_from": round(at - 1, 3),
        "leased_until": round(at + 14, 3),
    }


class Reader(HTMLParser):
    """What a browser would see: every tag with what it has, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "i", "line", "rect", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag != "i":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_says_the_verdict_and_the_numbers() -> None:
    seen = Reader(page(report()))
    assert not seen.open
    for words in (
        "Every guarantee was kept",
        "61,003",
        "59,870",
        "118",
        "0.412",
        "1,732",
        "had not ended when the run was over",
        "3.19",
        "redis://…@localhost:6379/1",
    ):
        assert words in seen.text
    assert not re.search(r"A guarantee was broken|requested, and never happened", seen.text)


def test_the_page_needs_no_network_and_no_script() -> None:
    html = page(report())
    seen = Reader(html)
    assert not {"script", "link", "img", "iframe", "object", "a"} & {tag for tag, _ in seen.tags}
    named = {name for _, has in seen.tags for name in has}
    assert not [name for name in named if name in ("src", "href", "srcset", "style") or name.startswith("on")]
    assert not re.search(r"@import|url\(|https?://", html)
    assert "default-src 'none'" in html


def test_every_fault_has_its_mark_in_the_partition_of_its_kind() -> None:
    told = report()
    html = page(told)
    for kind in KINDS:
        (partition,) = re.findall(rf'<svg [^>]*aria-label="{kind}">.*?</svg>', html, re.DOTALL)
        drawing = ElementTree.fromstring(partition)
        assert len(drawing.findall("g")) == told["injected"][kind]
    assert f'stop-store <span class="faint">× {told["injected"]["stop-store"]}</span>' in html


def test_a_mark_stands_where_the_fault_was_and_is_as_long_as_it_lasted() -> None:
    fault = {"at": 150.0, "kind": "stop-store", "target": "redis", "note": "SIGSTOP", "seconds": 30.0}
    html = page(report(faults=[fault]))
    (partition,) = re.findall(r'<svg [^>]*aria-label="stop-store">.*?</svg>', html, re.DOTALL)
    (mark,) = ElementTree.fromstring(partition).findall("g")
    assert mark.findtext("title") == "stop-store at 150.0 s for 30 s: redis · SIGSTOP"
    bar, line = mark.find("rect"), mark.find("line")
    assert bar is not None
    assert line is not None
    assert (bar.get("x"), bar.get("width"), line.get("x1")) == ("500.0", "100.0", "500.0")


def test_the_chart_has_a_point_for_each_second_and_a_scale() -> None:
    samples = [{"at": n, "enqueued": 10 * n, "completed": 5 * n} for n in range(10)]
    html = page(report(throughput=samples, faults=[], seconds=10))
    lines = re.findall(r'<polyline class="(\w+)" points="([^"]*)"', html)
    assert [name for name, _ in lines] == ["in", "out"]
    assert [point.partition(",")[0] for point in lines[0][1].split()] == [
        f"{100 * n + 50}.0" for n in range(10)
    ]
    assert lines[0][1].split()[-1] == "950.0,10.0"  # 90 of 100
    assert "100/s" in html


def test_a_long_run_makes_no_endless_page() -> None:
    samples = [{"at": n, "enqueued": 100, "completed": 100} for n in range(36_000)]
    faults = [{"at": n / 2, "kind": "raise", "target": "", "note": "", "seconds": 0} for n in range(72_000)]
    html = page(report(throughput=samples, faults=faults, seconds=36_000))
    assert len(html) < 300_000
    assert "× 72,000" in html
    assert "10:00:00" in html


def test_what_is_broken_is_said_first_with_its_findings() -> None:
    finding = {"promise": "I1", "says": "acknowledged, and never ended", "queue": "mail", "id": "j-1"}
    seen = Reader(page(report(verdict="broken", lost=1, reasons=["1 job lost"], findings=[finding])))
    assert seen.text.index("A guarantee was broken") < seen.text.index("1 job lost")
    for words in finding.values():
        assert words in seen.text


def test_a_kind_that_never_happened_is_said() -> None:
    seen = Reader(page(report(asked=["failover"], injected={"failover": 0, "reset": 3})))
    assert "requested, and never happened" in seen.text


@pytest.mark.parametrize(
    "evil", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{style}&amp;"]
)
def test_nothing_in_a_report_is_markup(evil: str) -> None:
    fault = {"at": 1.0, "kind": evil, "target": evil, "note": evil, "seconds": 1}
    again = dict.fromkeys(("queue", "id", "task", "cause", "attempt", "fault_at", "leased_from"), evil)
    finding = dict.fromkeys(("promise", "says", "queue", "id"), evil)
    names = ("url", "store", "seed", "started_at", "verdict")
    changes: dict[str, Any] = dict.fromkeys(names, evil)
    changes |= {"faults": [fault], "duplicates": [again], "findings": [finding], "reasons": [evil]}
    seen = Reader(page(report(**changes, asked=[evil], injected={evil: 1})))
    assert not seen.open
    assert not {"script", "img"} & {tag for tag, _ in seen.tags}
    assert not [has for _, has in seen.tags if "onerror" in has]
    assert seen.text.count(evil) >= 12


def test_a_report_with_nothing_in_it_is_a_page_too() -> None:
    seen = Reader(page({"verdict": "broken"}))
    assert not seen.open
    assert "A guarantee was broken" in seen.text
