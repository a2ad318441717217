"""The Redis store for callers without an event loop: its verbs, and how a thread waits for jobs to end."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from penstock.core.ids import mint_token
from penstock.core.job import Job, Ref
from penstock.stores.facade import SyncFacade, VerbTable
from penstock.stores.redis.plan_runner import PlanRunner
from penstock.stores.redis.reading import shown
from penstock.stores.redis.subscriber import read_end
from penstock.stores.redis.verbs import result_waiting
from penstock.stores.redis.wire.async_runner import SyncRunner
from penstock.stores.result_waiter import EndedJobs

__all__ = ["SyncRedisStore"]

#: Waiters re-check at this interval (seconds) even if no notification arrived.
_SAFETY = 5.0


class SyncRedisStore(SyncFacade):
    """The sync verbs; each runs in the caller's thread."""

    def __init__(self, runner: SyncRunner, plans: PlanRunner, verbs: VerbTable) -> None:
        super().__init__(verbs)
        self._runner = runner
        self._plans = plans
        self._context = plans.context

    def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        found: EndedJobs = {}
        for some in self.stream_ends(refs, timeout=timeout):
            found |= some
        if left := [ref for ref in refs if ref not in found]:
            found |= zip(left, self.get(left), strict=True)
        return [found[ref] for ref in refs]

    def stream_ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[EndedJobs, None, None]:
        """Yield ended jobs until all have ended, or until the timeout."""
        until = time.monotonic() + timeout / 1000
        open = dict.fromkeys(refs)
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
