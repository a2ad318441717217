"""The verb that lists jobs: by any of their facts, in an order, in bounded steps."""

from __future__ import annotations

import enum
from typing import Annotated, Self

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigError
from penstock.core.job import TERMINAL, Job, Ref, State
from penstock.core.security import Secret
from penstock.stores.contract.request import SyncRequest

#: The most jobs that one call of `search` reads, and the bytes of their records at which it stops: what
#: a Redis server reads within 5 ms. (Redis passes half as many at once.)
SEARCH_STEP, SEARCH_BYTES = 500, 1 << 20
#: The most jobs that one call of `search` finds.
MOST_FOUND = 500
#: States of jobs that wait for their due time.
DUE_LATER = frozenset({State.SCHEDULED, State.RETRYABLE, State.SUSPENDED})


class TimeRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Instants from `since` on and before `until`; None: without this end."""

    since: int | None = None
    until: int | None = None

    def has(self, instant: int | None) -> bool:
        """Whether this instant is in the range; None, for what has not happened, is in none but the whole."""
        if instant is None:
            return self.since is None and self.until is None
        return (self.since is None or self.since <= instant) and (self.until is None or instant < self.until)


_ALWAYS = TimeRange()


class JobFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which jobs: those for which all of this is true. The default matches every job.

    - `queues`, `states`: the job is in one of them; empty: in any.
    - `task`: the name of its task.
    - `worker`: this worker holds the job now.
    - `flow`: the job is a node of this flow.
    - `headers`: it has each of these headers, with this value.
    - `text`: its payload (the stored JSON), its id, its reason or one of its errors as `Kind: message`
      contains this text. The case of ASCII letters makes no difference. A payload may contain the text as it
      is stored, or with its escapes replaced: `\\u00f6` by ö, `\\/` by a slash.
    - `hidden`: for viewers who may not see all values: names, of which `*` stands for any characters. The
      text is not looked for in values of the payload under these names, and such a header matches nothing.
    - `enqueued`, `due`, `ended`: when it was enqueued, is or was due (`run_at`), and ended.
    - `not_tasks`: it is of none of these tasks.
    - `id`: it has this id; several queues may have such a job. The jobs are looked up, and the cost does not
      grow with the number of others.
    """

    queues: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    task: str | None = None
    worker: str | None = None
    flow: Ref | None = None
    headers: dict[str, str] = {}
    text: Annotated[str, Secret.SEARCH] = ""
    hidden: tuple[str, ...] = ()
    enqueued: TimeRange = _ALWAYS
    due: TimeRange = _ALWAYS
    ended: TimeRange = _ALWAYS
    not_tasks: tuple[str, ...] = ()
    id: str | None = None


class JobOrder(enum.StrEnum):
    """How jobs are ordered: by a time (equal times: by order of enqueue), or as they start."""

    ENQUEUED = "enqueued"  # of all jobs
    DUE = "due"  # `run_at`: of scheduled, retryable and suspended jobs
    ENDED = "ended"  # of completed, cancelled and dead jobs
    READY = "ready"  # as a fetch takes them, so only ascending: of the available jobs of one queue

    __hash__ = str.__hash__


class SearchHit(msgspec.Struct, frozen=True, gc=False):
    """A job that matches. `after`: the cursor of the search behind this job."""

    job: Job
    after: str


class SearchPage(msgspec.Struct, frozen=True):
    """What one step of a search found.

    - `next`: the `after` of the next step; None: the search is complete.
    - `seen`: about how many jobs of the filter's queues and states the step has passed.
    - `away`: queues that the step left out, because their part of the store does not answer.
    """

    hits: list[SearchHit]
    next: str | None
    seen: int
    away: tuple[str, ...] = ()

    @property
    def jobs(self) -> list[Job]:
        """The jobs that match."""
        return [hit.job for hit in self.hits]


_ORDERED = {
    JobOrder.ENQUEUED: frozenset(State),
    JobOrder.DUE: DUE_LATER,
    JobOrder.ENDED: TERMINAL,
    JobOrder.READY: frozenset({State.AVAILABLE}),
}


def check_search(filter: JobFilter, order: JobOrder, *, descending: bool = False) -> JobFilter:
    """Return the filter with the states that a search in this order looks at. Raises ConfigError.

    Without states in the filter, these are all that have this order. `hidden` stays if it makes a difference.
    """
    kind = "ready order" if order is JobOrder.READY else f"order by {order.value} time"
    wrong = sorted(set(filter.states) - _ORDERED[order])
    if wrong:
        known = ", ".join(sorted(_ORDERED[order]))
        raise ConfigError(
            f"{wrong[0].value} jobs have no {kind}: order them by enqueued time, or give states of {known}"
        )
    queues = tuple(sorted(set(filter.queues)))
    if order is JobOrder.READY and (descending or len(queues) != 1):
        raise ConfigError("the ready order is of one queue, ascending: give one queue, and descending=False")
    if filter.id is not None and order is not JobOrder.ENQUEUED:
        raise ConfigError(f"jobs with one id have no {kind}: order them by enqueued time")
    states = tuple(sorted(set(filter.states)))
    if not states and order is not JobOrder.ENQUEUED:
        states = tuple(sorted(_ORDERED[order]))
    if not states and filter.worker is not None:
        states = (State.RUNNING,)
    return msgspec.structs.replace(
        filter,
        states=states,
        queues=queues,
        hidden=filter.hidden if filter.text or filter.headers else (),
    )


class Search(SyncRequest[SearchPage], frozen=True):
    """Look for jobs that match, in this order, for one bounded step.

    - A step passes a bounded number of jobs and bytes (`SEARCH_STEP`, `SEARCH_BYTES`), so it may find few
      jobs or none: only `next` is None tells the end. `Store.list_jobs` goes on until its page is full.
    - `after`: the `next` of the previous step, or the `after` of a hit, of a search in the same order and
      direction. Jobs that keep their place in the order are found exactly once, also if others are added,
      moved or removed between the steps. In order of enqueue, every job keeps its place.
    - `limit`: the most jobs that the step finds, from 1 to `MOST_FOUND`.
    - Nothing is leased. Expired jobs that no verb has cancelled yet are found.
    - Exception: if the store's clock was set back by more than 5 s, jobs of different queues may be in
      the order of that clock (docs/concepts/order.md).
    - Exception: on Redis, if the clock was set back by more than a minute, an end of the range of
      `enqueued` may miss jobs that were enqueued after that, until the clock has caught up.

    Errors: ConfigError if `after` is not a cursor of this order, or a state or the filter has no place in
    the order; StoreUnavailable if no job with the filter's `id` is found, and a part of the store is
    unreachable.
    """

    filter: JobFilter
    order: JobOrder = JobOrder.ENQUEUED
    descending: bool = True
    after: str | None = None
    limit: int = 50

    def checked(self) -> Self:
        filter = check_search(self.filter, self.order, descending=self.descending)
        return replace(self, filter=filter)
