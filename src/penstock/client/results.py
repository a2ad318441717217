"""Waits for the results of many jobs: all in one wait, or each when it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import aclosing, closing
from typing import Any, Generic, TypeVar, cast

from penstock.client.handle import (
    Handle,
    belongs_to,
    keeps_result,
    name_of,
    outcome_of,
    refuse_unkept,
    with_end,
)
from penstock.client.timeouts import (
    WaitLimit,
    acall_through_outage,
    astream_ends,
    call_through_outage,
    refuse_in_loop,
    stream_ends,
)
from penstock.core.errors import ConfigError, PenstockError, ResultTimeout
from penstock.core.formats import Duration
from penstock.core.job import Job, Ref
from penstock.stores.contract import Store

R = TypeVar("R")


def results(
    store: Store, handles: Iterable[Handle[R]], timeout: Duration | None, return_errors: bool
) -> list[R | PenstockError]:
    """Implements `App.results`."""
    refuse_in_loop("app.results()", "await app.aresults()")
    wait_limit, found = WaitLimit(timeout), _Results(_checked(store, handles, "results"), return_errors)
    if unsure := found.begin():
        jobs = call_through_outage(wait_limit, lambda: store.sync.get(unsure))
        found.learn(dict(zip(unsure, jobs, strict=True)))
    with closing(stream_ends(store, found.open, wait_limit)) as ended_jobs:
        for some in ended_jobs:
            found.take(some)
    if found.open:
        found.give_up(store.sync.get(list(found.open)), wait_limit)
    return found.all


async def aresults(
    store: Store, handles: Iterable[Handle[R]], timeout: Duration | None, return_errors: bool
) -> list[R | PenstockError]:
    """Implements `App.aresults`."""
    wait_limit, found = WaitLimit(timeout), _Results(_checked(store, handles, "aresults"), return_errors)
    if unsure := found.begin():
        jobs = await acall_through_outage(wait_limit, lambda: store.get(unsure))
        found.learn(dict(zip(unsure, jobs, strict=True)))
    async with aclosing(astream_ends(store, found.open, wait_limit)) as ended_jobs:
        async for some in ended_jobs:
            found.take(some)
    if found.open:
        found.give_up(await store.get(list(found.open)), wait_limit)
    return found.all


class AsCompleted(Generic[R]):
    """The handles of jobs in the order in which they end: `for` in a thread, `async for` in an event loop.

    Their `result()` and `aresult()` return at once without asking the store, also in an event loop.
    """

    def __init__(self, store: Store, handles: Iterable[Handle[R]], timeout: Duration | None) -> None:
        self._store = store
        self._wait_limit = WaitLimit(timeout)
        self._handles: dict[Ref, Handle[R]] = {}
        for handle in _checked(store, handles, "as_completed"):
            self._handles.setdefault(handle.ref, handle)
        self._order = {ref: number for number, ref in enumerate(self._handles)}

    def __iter__(self) -> Generator[Handle[R], None, None]:
        refuse_in_loop("for … in app.as_completed()", "async for … in app.as_completed()")
        wait_limit, open = self._wait_limit.restarted(), dict(self._handles)
        with closing(stream_ends(self._store, open, wait_limit)) as ended_jobs:
            for some in ended_jobs:
                for ref in sorted(some, key=self._order.__getitem__):
                    yield with_end(open.pop(ref), some[ref])
        self._refuse_late(open, wait_limit)

    async def __aiter__(self) -> AsyncGenerator[Handle[R], None]:
        wait_limit, open = self._wait_limit.restarted(), dict(self._handles)
        async with aclosing(astream_ends(self._store, open, wait_limit)) as ended_jobs:
            async for some in ended_jobs:
                for ref in sorted(some, key=self._order.__getitem__):
                    yield with_end(open.pop(ref), some[ref])
        self._refuse_late(open, wait_limit)

    def _refuse_late(self, open: dict[Ref, Handle[R]], wait_limit: WaitLimit) -> None:
        if open:
            late = f"{name_of(next(iter(open.values())))} has not ended within {wait_limit}"
            raise ResultTimeout(
                f"{len(open)} of {len(self._handles)} jobs are late, the first of them: {late}"
            )


class _Results(Generic[R]):
    """The results of several jobs, at the positions of their handles."""

    def __init__(self, handles: list[Handle[R]], return_errors: bool) -> None:
        self._handles = handles
        self._return_errors = return_errors
        self._outcomes: list[R | PenstockError | None] = [None] * len(handles)
        #: The jobs whose end is not known yet, with their positions.
        self.open: dict[Ref, list[int]] = {}

    @property
    def all(self) -> list[R | PenstockError]:
        return cast("list[R | PenstockError]", self._outcomes)

    def begin(self) -> list[Ref]:
        """Refuse handles that keep no result; returns the jobs whose retention only the store knows."""
        unsure: dict[Ref, None] = {}
        for place, handle in enumerate(self._handles):
            try:
                if not keeps_result(handle):
                    unsure[handle.ref] = None
                self.open.setdefault(handle.ref, []).append(place)
            except PenstockError as error:
                self._fail(place, error)
        return list(unsure)

    def learn(self, jobs: dict[Ref, Job | None]) -> None:
        """Refuse jobs that keep no result, or do not exist, by the store's answers."""
        for ref, job in jobs.items():
            places = self.open.pop(ref)
            for place in places:
                try:
                    refuse_unkept(self._handles[place], job)
                    self.open.setdefault(ref, []).append(place)
                except PenstockError as error:
                    self._fail(place, error)

    def take(self, ended: dict[Ref, Job | None]) -> None:
        """Add ended jobs. If several have failed, the error of the first handle is raised."""
        for ref in sorted(ended, key=lambda ref: self.open[ref][0]):
            for place in self.open.pop(ref):
                self._put(place, ended[ref])

    def give_up(self, jobs: list[Job | None], wait_limit: WaitLimit) -> None:
        """End the wait: add jobs that have ended, and report the others as late."""
        jobs_now = dict(zip(list(self.open), jobs, strict=True))
        self.take({ref: job for ref, job in jobs_now.items() if job is None or job.ended})
        for ref, places in self.open.items():
            for place in places:
                job = jobs_now[ref]
                late = f"{name_of(self._handles[place])} has not ended within {wait_limit}"
                error = ResultTimeout(f"{late}: it is {job.state.value}" if job else late)
                if not self._return_errors:
                    all = len({handle.ref for handle in self._handles})
                    raise ResultTimeout(
                        f"{len(self.open)} of {all} jobs are late, the first of them: {error}"
                    )
                self._outcomes[place] = error
        self.open.clear()

    def _put(self, place: int, job: Job | None) -> None:
        try:
            self._outcomes[place] = outcome_of(self._handles[place], job)
        except PenstockError as error:
            self._fail(place, error)

    def _fail(self, place: int, error: PenstockError) -> None:
        if not self._return_errors:
            raise error
        self._outcomes[place] = error


def _checked(store: Store, handles: Iterable[Handle[R]], who: str) -> list[Handle[R]]:
    if isinstance(handles, Handle):
        raise ConfigError(f"{who}() takes several handles, a list of them, not one: {handles!r}")
    try:
        checked = list(handles)
    except TypeError:
        raise ConfigError(f"{who}() takes handles, a list of them, not {handles!r:.100}") from None
    for number, handle in enumerate(checked, 1):
        _check(store, handle, number, who)
    return checked


def _check(store: Store, handle: Any, number: int, who: str) -> None:
    if not isinstance(handle, Handle):
        raise ConfigError(f"{who}() takes handles, and number {number} is {handle!r:.100}")
    if not belongs_to(handle, store):
        raise ConfigError(
            f"{who}() takes handles of its own app, and number {number}, of {name_of(handle)}, is another "
            "app's: ask that one, or make a handle here with app.handle(id, queue=...)"
        )
