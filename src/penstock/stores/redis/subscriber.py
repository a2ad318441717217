"""Messages to one event loop of a store object, which wake the waits that they concern.

A wake-up whose wait has ended is passed on to another waiter of its queue. A producer may also lease a job to
a waiting worker's offer (`dispatch_directly` in `scripts/enqueue.lua`): the job comes with the wake-up. It is
kept here until the worker's next fetch; a job that is not fetched goes back to the head of its queue.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from penstock.core.job import Job, Lease, Ref
from penstock.stores.redis.layout import id_of
from penstock.stores.result_waiter import ResultWaiter

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


# ── messages ──


#: The kinds of messages, by their first byte (see dispatch.lua, places.lua and queue.lua in scripts/lib/).
_END, _DISPATCH, _WORK = b"e", b"h", b"w"
#: Sent instead of a record that is too large for the message about its job's end.
_LARGE = b"l"


class Waiter:
    """One wait for work in some queues."""

    __slots__ = ("event", "messages", "offer", "queues", "take", "work")

    def __init__(self, queues: frozenset[str]) -> None:
        self.queues = queues
        self.offer: str | None = None  # the token of jobs that are leased to this wait
        self.take: Callable[[DispatchedJob], bool] = lambda _: (
            False
        )  # whether the worker has accepted this job
        self.event = asyncio.Event()
        self.work = False  # True: there is certainly work
        self.messages: set[bytes] = set()  # the messages received so far


class Subscriber:
    """The subscriber of one event loop: it receives messages and wakes the waits that they concern."""

    def __init__(
        self,
        channel: str,
        pass_on: Callable[[str, bytes], None],
        give_back: Callable[[Sequence[DispatchedJob]], None],
        read: Callable[[str, bytes, bytes], Job | None] = lambda *_: None,
    ) -> None:
        self.channel = channel
        self.direct_dispatch = DirectDispatch(give_back)
        self.offered: frozenset[str] = frozenset()  # the queues that have the last offer of this event loop
        self.ahead = 0.0  # the server's clock minus the local monotonic clock (ms)
        self.ready: asyncio.Task[None] | None = None  # done: its channels are subscribed
        self._pass_on = pass_on
        self._read = read  # job from queue, stored id and record; None: the server must be asked
        self._waiters: set[Waiter] = set()
        #: Waits for results in this event loop; None before the first one.
        self.result_waiter: ResultWaiter | None = None

    def on_message(self, message: bytes) -> None:
        """Handle a message on the channel of this event loop."""
        kind = message[:1]
        if kind == _END:
            self._ended(message)
            return
        if kind == _DISPATCH:
            self._on_dispatched(read_dispatched(message))
            return
        queue = message[1:].decode()
        concerned = [waiter for waiter in self._waiters if queue in waiter.queues]
        for waiter in concerned:
            waiter.work = waiter.work or kind == _WORK
            waiter.messages.add(message)
            waiter.event.set()
        if not concerned:
            self._pass_on(queue, kind)

    def age_of(self, came: Sequence[DispatchedJob]) -> float:
        """Return the age (ms) of the oldest of these leases."""
        return time.monotonic() * 1000 + self.ahead - min(one.now for one in came)

    def _on_dispatched(self, one: DispatchedJob) -> None:
        self.offered = frozenset()
        offerers = [waiter for waiter in self._waiters if waiter.offer == one.token]
        for waiter in offerers:
            if waiter.take(one):
                waiter.event.set()
                return
        self.direct_dispatch.came(one, wanted=bool(offerers))
        for waiter in offerers:
            waiter.work = True
            waiter.event.set()

    def on_notice(self, _: bytes) -> None:
        """Wake every wait, because of a request to stop or a change of settings."""
        for waiter in self._waiters:
            waiter.event.set()

    def on_messages_lost(self) -> None:
        """Wake every wait, because messages may have been missed."""
        self.on_notice(b"")
        if self.result_waiter is not None:
            self.result_waiter.recheck()

    def _ended(self, message: bytes) -> None:
        ref, id, record = read_end(message)
        if self.result_waiter is None or not self.result_waiter.awaited(ref):
            return
        job = self._read(ref.queue, id, record) if record else None
        if job is None and record != b"":  # the record was not sent, or cannot be read without the server
            self.result_waiter.recheck(ref)
        else:
            self.result_waiter.on_ended({ref: job})

    @contextmanager
    def waiting(self, queues: frozenset[str]) -> Iterator[Waiter]:
        """Receive messages about these queues while the block runs."""
        waiter = Waiter(queues)
        self._waiters.add(waiter)
        try:
            yield waiter
        except BaseException:  # boundary: however the wait ends, its messages are passed on
            for message in waiter.messages:
                self._pass_on(message[1:].decode(), message[:1])
            raise
        finally:
            self._waiters.discard(waiter)

    def offers(self, waiter: Waiter, token: str) -> None:
        """Expect jobs that are leased to this waiter under this token."""
        waiter.offer = token
        self.direct_dispatch.offer(token)


def read_end(message: bytes) -> tuple[Ref, bytes, bytes | None]:
    """Return the ref, stored id and record of an ended job: b"" if it was removed, None if too large."""
    name, id = message[1], message[2]
    at = 3 + name + id
    stored, record = message[3 + name : at], message[at:]
    ref = Ref(message[3 : 3 + name].decode(), id_of(stored))
    return ref, stored, None if record == _LARGE else record
