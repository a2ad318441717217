"""Direct dispatch: jobs that arrive with the wake-up message, already leased to the waiting worker.

A producer may lease a job to a waiting worker's offer (`dispatch_directly` in `scripts/enqueue.lua`). The
job is kept here until the worker's next fetch; a job that is not fetched goes back to the head of its queue.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from penstock.core.job import Job, Lease
from penstock.stores.redis.keys import id_of

__all__ = ["DirectDispatch", "DispatchedJob", "read_dispatched"]

_SIZES = struct.Struct(">BBBd")
#: Seconds that a job is kept for the next fetch, which follows the wake-up at once unless the worker is
#: stopping.
_PATIENCE = 0.25
#: Number of offers that are remembered.
_REMEMBERED = 64


class DispatchedJob(NamedTuple):
    """A dispatched job as it arrived."""

    queue: str
    stored: bytes  # its id
    token: str
    now: int  # the server's clock when it was leased
    record: bytes

    @property
    def lease(self) -> Lease:
        return Lease(self.queue, id_of(self.stored), self.token, int.from_bytes(self.record[1:8], "big"))


def read_dispatched(message: bytes) -> DispatchedJob:
    """Read a message of `dispatch_directly` in `enqueue.lua`."""
    name, id, token, now = _SIZES.unpack_from(message, 1)
    at = 1 + _SIZES.size
    queue = message[at : at + name].decode()
    at += name
    stored = message[at : at + id]
    at += id
    return DispatchedJob(queue, stored, message[at : at + token].decode(), int(now), message[at + token :])


class _Fetch:
    """The fetch that belongs to an offer."""

    __slots__ = ("failed", "found", "meanwhile", "under_way")

    def __init__(self) -> None:
        self.under_way = False
        self.meanwhile: list[DispatchedJob] = []  # arrived during the fetch, which may return them, too
        self.failed = False
        self.found: frozenset[Lease] = frozenset()


class DirectDispatch:
    """Dispatched jobs of one event loop, by token."""

    def __init__(self, give_back: Callable[[Sequence[DispatchedJob]], None]) -> None:
        self._give_back = give_back
        self._kept: dict[str, list[DispatchedJob]] = {}
        self._fetches: dict[str, _Fetch] = {}  # by token, for the most recent offers

    def offer(self, token: str) -> None:
        """Expect jobs that are leased under this token."""
        if token not in self._fetches:
            while len(self._fetches) >= _REMEMBERED:
                self._fetches.pop(next(iter(self._fetches)))
            self._fetches[token] = _Fetch()

    def came(self, one: DispatchedJob, *, wanted: bool) -> None:
        """Keep a dispatched job that has arrived, or give it back unless a fetch has already returned it.

        `wanted`: the worker that made the offer still waits, and fetches next.
        """
        fetch = self._fetches.get(one.token)
        if fetch is not None and fetch.under_way:
            fetch.meanwhile.append(one)
        elif fetch is not None and (fetch.failed or one.lease in fetch.found):
            return  # the failed fetch is repeated, and returns all leases under its token
        elif wanted:
            self._keep(one)
        else:
            self._give_back([one])

    def take(self, token: str) -> list[DispatchedJob]:
        """Take the jobs leased under this token; none after a failed fetch, which must ask the server."""
        kept, fetch = self._kept.pop(token, []), self._fetches.get(token)
        return [] if fetch is not None and fetch.failed else kept

    @contextmanager
    def fetching(self, token: str) -> Iterator[list[Job]]:
        """Enter this block while a fetch with this token asks the server; append its jobs to the list."""
        found: list[Job] = []
        fetch = self._fetches.get(token)
        if fetch is None:  # the token was not offered
            yield found
            return
        fetch.under_way, fetch.failed = True, True
        try:
            yield found
            fetch.failed = False
        finally:
            fetch.under_way = False
            fetch.found = frozenset(job.lease for job in found)
            meanwhile, fetch.meanwhile = fetch.meanwhile, []
            for one in meanwhile:
                self.came(one, wanted=False)

    def _keep(self, one: DispatchedJob) -> None:
        kept = self._kept.get(one.token)
        if kept is None:
            kept = self._kept[one.token] = []
            asyncio.get_running_loop().call_later(_PATIENCE, self._nobody_came, one.token)
        kept.append(one)

    def _nobody_came(self, token: str) -> None:
        if left := self._kept.pop(token, None):
            self._give_back(left)
