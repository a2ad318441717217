"""`penstock jobs list --follow`: jobs as they are enqueued, or as they end."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from penstock.cli.following import follow
from penstock.cli.session import Session
from penstock.cli.show import emit, say
from penstock.core.job import TERMINAL

if TYPE_CHECKING:
    from penstock.inspector import JobRow, JobSearch
    from penstock.stores.contract import Store

__all__ = ["follow_jobs"]

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
        self._shown: set[tuple[str, str, str | None]] = set()

    async def look(self) -> bool:
        """Print them; returns True, because more may come."""
        from penstock.inspector import Inspector

        now = (await self._store.entries([])).now
        since = self._began(now) if self._since is None else self._since
        shown: set[tuple[str, str, str | None]] = set()
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

    def _print(self, job: JobRow) -> None:
        if self._json:
            emit(job, on_one_line=True)
            return
        at = job.ended_at if self._by_end else job.enqueued_at
        why = job.error or job.reason
        says = f"{at}  {job.state:<9}  {job.queue}/{job.id}  {job.task}"
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
