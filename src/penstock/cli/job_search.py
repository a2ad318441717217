"""Options of job searches, a search with its progress in the terminal, and `--follow` for new jobs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from penstock.cli.completing import complete_queue, complete_worker
from penstock.cli.formats import last_error
from penstock.cli.session import Session, limit_option
from penstock.cli.show import emit, say, status
from penstock.cli.watching import follow
from penstock.core.errors import ConfigError
from penstock.core.formats import iso, shown_text
from penstock.core.job import TERMINAL, State
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.core.job import Job
    from penstock.inspector import Inspector, JobSearch
    from penstock.stores.contract import Store


# ── options ──────────────────────────────────────────────────────────────────────────────────────

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
        metavar="QUEUE",
        multiple=True,
        shell_complete=complete_queue,
        help="Filter by queue; may be repeated.",
    ),
    click.option(
        "--state",
        "-s",
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
        help="Filter by text in the arguments, errors, reason or id.",
    ),
    click.option("--header", metavar="NAME=VALUE", multiple=True, help="Filter by header; may be repeated."),
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


def read_search(*, by: str, reverse: bool, **filters: str | tuple[str, ...] | None) -> JobSearch:
    """The search that the options ask for; `filters`: the options that filter, by name."""
    from penstock.inspector import JobSearch, read_filter
    from penstock.stores.contract import JobOrder

    given = {name: (value,) if isinstance(value, str) else value or () for name, value in filters.items()}
    try:
        filter = read_filter(
            {**given, "time": (by,)},
            now=time.time_ns() // 1_000_000,
            written=lambda name, text: f"--{name} {text!r}",
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from None  # which points to the help of the command
    return JobSearch(filter, JobOrder(by), _LATEST_FIRST[by] is not reverse)


# ── a search with its progress ───────────────────────────────────────────────────────────────────


class Found(NamedTuple):
    """What a search found.

    `next`: where it continues; `stopped`: it was interrupted; `away`: queues that it could not search.
    """

    jobs: list[Job]
    next: str | None
    stopped: bool
    away: tuple[str, ...]


async def run_search(inspector: Inspector, search: JobSearch, after: str | None, limit: int) -> Found:
    """Search until `limit` jobs are found, with progress at a terminal. Ctrl-C ends it early."""
    jobs: list[Job] = []
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


# ── new jobs: --follow ───────────────────────────────────────────────────────────────────────────

#: How far (ms) each search reaches back before the previous one, for jobs that were being stored then.
_OVERLAP = 2_000
#: The options that have no meaning for jobs that are still to come, by name of the parameter.
_REFUSED = {"after": "--after", "until": "--until", "reverse": "--reverse", "limit": "-n"}


def follow_jobs(search: JobSearch) -> None:
    """Print the jobs of the search that come from now on, or from its start on."""
    followed = _check(search)
    json = Session.current().json
    follow(lambda store: _NewJobs(store, followed, json=json).look)


class _NewJobs:
    """Prints the jobs of a search that have come since the last look; in the beginning, since now."""

    def __init__(self, store: Store, search: JobSearch, *, json: bool) -> None:
        self._store = store
        self._search = search
        self._json = json
        self._by_end = search.order.value == "ended"
        self._since: int | None = None
        self._shown: set[tuple[str, str, int | None]] = set()

    async def look(self) -> bool:
        """Print them; returns True, because more may come."""
        from penstock.inspector import Inspector

        now = await self._store.now()
        since = self._began(now) if self._since is None else self._since
        shown: set[tuple[str, str, int | None]] = set()
        async with aclosing(Inspector(self._store).search(self._from(since))) as steps:
            async for step in steps:
                for job in step.jobs:
                    key = (job.queue, job.id, job.ended_at if self._by_end else job.enqueued_at)
                    if key not in self._shown:
                        self._print(job)
                    shown.add(key)
        self._shown, self._since = shown, max(since, now - _OVERLAP)
        return True

    def _began(self, now: int) -> int:
        """The start of the first search: --since, or now."""
        given = getattr(self._search.filter, self._search.order.value).since
        return now if given is None else given

    def _from(self, since: int) -> JobSearch:
        from penstock.stores.contract import TimeRange

        by = {self._search.order.value: TimeRange(since)}
        return replace(self._search, filter=replace(self._search.filter, **by))

    def _print(self, job: Job) -> None:
        if self._json:
            emit(job, on_one_line=True)
            return
        at = job.ended_at if self._by_end else job.enqueued_at
        why = last_error(job) or (job.reason and shown_text(job.reason))
        says = f"{iso(at)}  {job.state:<9}  {job.queue}/{job.id}  {job.task}"
        say(f"{says}  {why}" if why else says)


def _check(search: JobSearch) -> JobSearch:
    """The search for jobs to come: ordered by end if only ended states are chosen. Raises UsageError."""
    from penstock.stores.contract import JobOrder

    context = click.get_current_context()
    for name, option in _REFUSED.items():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--follow shows jobs that are still to come: it cannot have {option}")
    states = set(search.filter.states)
    if search.order is JobOrder.DUE:
        raise click.UsageError("--follow shows jobs as they are enqueued or as they end: give no other --by")
    if states and not states <= TERMINAL:
        raise click.UsageError(
            "--follow shows jobs as they are enqueued, or with --state completed, cancelled or dead as they "
            "end: give no other --state"
        )
    if states and search.order is JobOrder.ENQUEUED:
        since, filter = search.filter.enqueued, replace(search.filter, enqueued=search.filter.ended)
        search = replace(search, filter=replace(filter, ended=since), order=JobOrder.ENDED)
    return replace(search, descending=False)
