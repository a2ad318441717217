"""The Redis store for callers without an event loop: its verbs, and how a thread waits for jobs to end."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from msgspec.structs import astuple

from penstock.core.ids import mint_token
from penstock.core.job import Ref
from penstock.stores.contract import StreamEnds, SyncRequest, WaitForEnd
from penstock.stores.own_store import OwnSyncStore
from penstock.stores.redis.handlers import HANDLERS
from penstock.stores.redis.plan_runner import PlanRunner
from penstock.stores.redis.reading import shown
from penstock.stores.redis.subscriber import read_end
from penstock.stores.redis.verbs import result_waiting
from penstock.stores.redis.wire.sync_runner import SyncRunner
from penstock.stores.result_waiter import EndedJobs

A = TypeVar("A")

#: Waiters re-check at this interval (seconds) even if no notification arrived.
_SAFETY = 5.0


class SyncRedisStore(OwnSyncStore):
    """The sync verbs; each runs in the caller's thread."""

    def __init__(self, runner: SyncRunner, plans: PlanRunner) -> None:
        self._runner = runner
        self._plans = plans
        self._context = plans.context

    def _answer(self, request: SyncRequest[A]) -> A:
        answer: Any
        if isinstance(request, WaitForEnd):
            answer = self._wait_for_end(request)
        else:
            answer = self._plans.run_sync(HANDLERS[type(request)](self._context, *astuple(request)))
        return answer  # type: ignore[no-any-return]

    def stream(self, request: StreamEnds) -> Generator[EndedJobs, None, None]:
        until = time.monotonic() + request.timeout / 1000
        open = dict.fromkeys(request.refs)
        if not open:
            return
        channel = self._context.redis_keys.channel(mint_token()[:16])
        unreported: set[Ref] = set()  # jobs whose end will be published, but was not received yet
        with self._runner.listener(channel.encode()) as listener:
            while open:
                listening_on = listener.channel.decode()
                ended = self._plans.run_sync(
                    result_waiting.find_ended(self._context, list(open), listening_on, 2 * _SAFETY)
                )
                unreported |= open.keys() - ended.keys()
                look_again = min(until, time.monotonic() + _SAFETY)
                while True:
                    for ref in ended:
                        del open[ref]
                    if not open:  # ended without a message: the message is late, or the connection is dead
                        listener.then = "close" if unreported else "keep"
                    if ended:
                        yield ended
                    message = listener.receive(max(0.0, look_again - time.monotonic())) if open else None
                    if message is None:
                        break
                    unreported.discard(read_end(message)[0])
                    ended = self._end_in(message, open)
                if until <= time.monotonic():
                    return

    def _end_in(self, message: bytes, open: dict[Ref, None]) -> EndedJobs:
        """Return the ended job of this message; nothing if it is no longer waited for."""
        ref, id, record = read_end(message)
        if ref not in open:
            return {}
        if record is None:  # too large for the message
            (job,) = self.get([ref])
            return {ref: job} if job is None or job.ended else {}
        if not record:
            return {ref: None}
        (job,) = self._plans.run_sync(shown(self._context, ref.queue, [(id, record, None)]))
        return {ref: job}
