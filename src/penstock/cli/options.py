"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["limit_option"]


def limit_option(what: str, *, most: int = 1_000) -> Callable[[Any], Any]:
    """`--limit N` of a command that lists: at most `most`, 50 by default. `what`: the listed things."""
    return click.option(
        "--limit",
        "-n",
        metavar="N",
        type=click.IntRange(1, most),
        default=50,
        show_default=True,
        help=f"Maximum number of {what} to show.",
    )
