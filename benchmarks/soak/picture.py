"""Draws a soak test as SVG: memory, descriptors and waiting times over time, one curve below the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.soak.samples import Sample

__all__ = ["picture"]

_WIDE, _HIGH, _LEFT, _GAP = 720, 120, 70, 46
_COLOURS = ("#2563eb", "#d97706", "#059669")

#: Panels: a title, and its curves by name. Each panel has its own scale, from zero.
_PANELS: list[tuple[str, dict[str, Callable[[Sample], float]]]] = [
    ("memory (MB)", {"worker, PSS": lambda s: s.worker_pss, "store": lambda s: s.size}),
    ("descriptors, threads", {"descriptors": lambda s: s.descriptors, "threads": lambda s: s.threads}),
    ("from enqueue to start (ms)", {"p99": lambda s: s.p99, "p50": lambda s: s.p50}),
]


def picture(samples: Sequence[Sample], title: str) -> str:
    """The complete SVG file."""
    high = 40 + len(_PANELS) * (_HIGH + _GAP)
    end = samples[-1].seconds
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + 20} {high}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{_LEFT}" y="20">{escape(title)}</text>',
    ]
    for n, (name, curves) in enumerate(_PANELS):
        parts += _panel(samples, name, curves, 40 + n * (_HIGH + _GAP), end)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    samples: Sequence[Sample],
    name: str,
    curves: dict[str, Callable[[Sample], float]],
    top: int,
    end: float,
) -> list[str]:
    values = [of(sample) for of in curves.values() for sample in samples]
    most = _round(max(value for value in values if not math.isnan(value)))
    bottom = top + _HIGH
    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDE}" height="{_HIGH}" fill="none" stroke="#cbd5e1"/>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{most:g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT + _WIDE}" y="{bottom + 16}" text-anchor="end">{end / 60:.0f} min</text>',
        f'<text x="{_LEFT}" y="{bottom + 16}">{escape(name)}</text>',
    ]
    for n, (label, of) in enumerate(curves.items()):
        points = " ".join(
            f"{_LEFT + sample.seconds / end * _WIDE:.1f},{bottom - of(sample) / most * _HIGH:.1f}"
            for sample in samples
            if not math.isnan(of(sample))
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLOURS[n]}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{_LEFT + 240 + n * 130}" y="{bottom + 16}" fill="{_COLOURS[n]}">{escape(label)}</text>'
        )
    return parts


def _round(value: float) -> float:
    """The next round number above."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return float(
        next(unit * step for step in (1, 2, 2.5, 5, 10) if unit * step >= value * 1.05 or step == 10)
    )
