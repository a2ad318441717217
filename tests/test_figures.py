"""The README quotes its figures from the results in docs/benchmarks.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: 44 473, 7.55, 10: thousands are separated by a space.
NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?: \d{3})+(?![\w.]*\d)|(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)")


def section(page: str, heading: str) -> str:
    """The text below a heading of the second level."""
    text = (ROOT / page).read_text("utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| --")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("**44 473** | – | 2 819", {"44 473", "2 819"}),
        ("1.04 (0.99–1.14)", {"1.04", "0.99", "1.14"}),
        ("p50, S1, 2.2.1 and 3 ×", {"3"}),
    ],
)
def test_numbers_are_found_in_a_text(text: str, found: set[str]) -> None:
    assert numbers(text) == found


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    page, readme = section("docs/benchmarks.md", "Results"), section("README.md", "Figures")
    assert numbers(readme) <= numbers(page)
    results = rows(page)
    heads, *lines = rows(readme)
    assert len(lines) == 5
    for place, program in list(enumerate(heads))[1:]:
        measured = numbers(" | ".join(" | ".join(row[1:]) for row in results if row[0].startswith(program)))
        assert measured, f"{program} has no row in docs/benchmarks.md"
        quoted = set().union(*(numbers(line[place]) for line in lines))
        assert quoted <= measured, f"{program}: {quoted - measured} is not in docs/benchmarks.md"
