"""The options of searches for jobs, and a search with its progress at the terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.completing import complete_queue, complete_worker
from penstock.cli.options import limit_option
from penstock.cli.show import status
from penstock.core.duration import instant_ms, milliseconds
from penstock.core.errors import ConfigError
from penstock.core.job import State
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.inspector import Inspector, JobRow, JobSearch
    from penstock.stores.contract import TimeRange

__all__ = ["Found", "filter_options", "read_search", "run_search", "search_options"]

_STATES = [state.value for state in State]
#: Without --reverse, jobs of this order come latest first.
_LATEST_FIRST = {"enqueued": True, "due": False, "ended": True}
#: The forms of a time.
_FORMS = "2h (ago), +2h, or 2026-11-20T08:30:00Z"
#: Seconds before the first line of progress, and between two.
_PROGRESS = 0.5, 0.1

_FILTERS = (
    click.option(
        "--queue",
        "-q",
        "queues",
        metavar="QUEUE",
        multiple=True,
        shell_complete=complete_queue,
        help="Filter by queue; may be repeated.",
    ),
    click.option(
        "--state",
        "-s",
        "states",
        type=click.Choice(_STATES, case_sensitive=False),
        metavar="STATE",
        multiple=True,
        help=f"Filter by state; may be repeated: {', '.join(_STATES)}.",
    ),
    click.option("--task", "-t", metavar="TASK", help="Filter by task name."),
    click.option(
        "--text",
        "-x",
        metavar="TEXT",
        default="",
        help="Filter by text in the arguments, errors, reason or id.",
    ),
    click.option(
        "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Filter by header; may be repeated."
    ),
    click.option("--flow", metavar="QUEUE/ID", help="Filter by the flow that the job is a node of."),
    click.option(
        "--worker",
        "-w",
        metavar="ID",
        shell_complete=complete_worker,
        help="Filter by the worker that runs the job.",
    ),
)


def _times(of: str) -> tuple[Callable[..., Any], ...]:
    """The options of a range of time."""
    return (
        click.option("--since", metavar="TIME", help=f"Earliest time of {of}: {_FORMS}."),
        click.option("--until", metavar="TIME", help=f"Latest time of {of}, in the same forms."),
    )


_ORDERING = (
    click.option(
        "--by",
        type=click.Choice([*_LATEST_FIRST]),
        default="enqueued",
        show_default=True,
        help="Time to order by: due for scheduled, retryable and suspended jobs, ended for ended ones.",
    ),
    click.option(
        "--reverse", "-r", is_flag=True, help="Reverse the order.  [default: latest first; by due: earliest]"
    ),
    limit_option("jobs"),
    click.option(
        "--after", metavar="CURSOR", help="Continue at the cursor that the previous search printed."
    ),
)


def search_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a search to a command; `read_search` reads them."""
    for option in reversed((*_FILTERS, *_times("the enqueue, or of --by"), *_ORDERING)):
        function = option(function)
    return function


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add only the options that filter."""
    for option in reversed((*_FILTERS, *_times("the enqueue"))):
        function = option(function)
    return function


def read_search(
    *,
    queues: Sequence[str],
    states: Sequence[str],
    task: str | None,
    text: str,
    headers: Sequence[str],
    flow: str | None,
    worker: str | None,
    since: str | None,
    until: str | None,
    by: str,
    reverse: bool,
) -> JobSearch:
    """What the options ask for."""
    from penstock.core.job import Ref
    from penstock.inspector import JobSearch, parse_address, parse_state
    from penstock.stores.contract import JobFilter, JobOrder, TimeRange

    ref = None if flow is None else parse_address(flow)
    if ref is not None and not isinstance(ref, Ref):
        raise click.UsageError(f"--flow {flow!r} names no queue: write QUEUE/ID")
    filter = JobFilter(
        tuple(queues), tuple(map(parse_state, states)), task, worker, ref, _headers(headers), text
    )
    if since is not None or until is not None:
        range = TimeRange(_instant("--since", since), _instant("--until", until))
        if range.since is not None and range.until is not None and range.since >= range.until:
            raise click.UsageError(f"--since {since!r} is not before --until {until!r}: no job can match")
        filter = _with_range(filter, by, range)
    return JobSearch(filter, JobOrder(by), _LATEST_FIRST[by] is not reverse)


def _with_range(filter: Any, by: str, range: TimeRange) -> Any:
    from msgspec.structs import replace

    return replace(filter, **{by: range})


def _headers(given: Sequence[str]) -> dict[str, str]:
    pairs = [header.partition("=") for header in given]
    for header, (name, equals, _) in zip(given, pairs, strict=True):
        if not name or not equals:
            raise click.UsageError(f"--header {header!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _instant(option: str, text: str | None) -> int | None:
    """An instant in ms: `2h` before now, `+2h` from now, or a timestamp."""
    if text is None:
        return None
    if "T" in text or "-" in text.strip("+-"):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise click.UsageError(f"{option} {text!r} is not a time: write 2026-11-20T08:30:00Z") from None
        if moment.tzinfo is None:
            raise click.UsageError(f"{option} {text!r} has no time zone: write {moment.isoformat()}Z for UTC")
        return instant_ms(moment, what=option)
    try:
        offset = milliseconds(text.removeprefix("+"), what=option)
    except ConfigError:
        raise click.UsageError(f"{option} {text!r} is not a time: write {_FORMS}") from None
    now = time.time_ns() // 1_000_000
    return now + offset if text.startswith("+") else now - offset


class Found(NamedTuple):
    """What a search found.

    `next`: where it continues; `stopped`: it was interrupted; `away`: queues that it could not search.
    """

    jobs: list[JobRow]
    next: str | None
    stopped: bool
    away: tuple[str, ...]


async def run_search(inspector: Inspector, search: JobSearch, after: str | None, limit: int) -> Found:
    """Search until `limit` jobs are found, with progress at a terminal. Ctrl-C ends it early."""
    jobs: list[JobRow] = []
    away: tuple[str, ...] = ()
    progress = _Progress()
    try:
        async with aclosing(inspector.search(search, after=after, limit=limit)) as steps:
            async for step in steps:
                jobs += step.jobs
                after, away = step.next, step.away
                progress.show(step.seen, step.total, len(jobs))
    except asyncio.CancelledError:  # Ctrl-C: the event loop cancels this task
        return Found(jobs, after, True, away)
    finally:
        progress.clear()
    return Found(jobs, after, False, away)


class _Progress:
    """The line of progress on stderr, at a terminal."""

    def __init__(self) -> None:
        shows = sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + _PROGRESS[0] if shows else None
        self._shown = False

    def show(self, seen: int, total: int, found: int) -> None:
        """Show how far the search is, some times per second."""
        if self._next is not None and time.monotonic() >= self._next:
            status(f"searched {seen:,} of {counted(total, 'job')}, found {found:,}; Ctrl-C stops")
            self._next, self._shown = time.monotonic() + _PROGRESS[1], True

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            status("")
