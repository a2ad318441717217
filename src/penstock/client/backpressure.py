"""Retries jobs that a full queue refused, if the queue's rule is to wait."""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence

from penstock.core.errors import BlockingCallWarning, EnqueueError, EnqueueUnknown, PenstockError, StoreError
from penstock.core.job import NewJob
from penstock.stores.contract import Enqueued, EnqueueStatus

#: Default time for which a producer waits for room in a full queue (ms).
FULL_TIMEOUT = 30_000

#: Bounds of the pause between two attempts (s).
_SHORTEST, _LONGEST = 0.005, 1.0

#: The event loop of this thread, or None; without a loop ten times as fast as `get_running_loop`.
running_loop = asyncio._get_running_loop
_warned = False

Answers = Sequence[Enqueued | None]


class Patience:
    """How long one call waits for room in full queues."""

    def __init__(self, timeout: float) -> None:
        self._ends = time.monotonic() + timeout

    def pause(self, retry_after: float | None) -> float | None:
        """Seconds until the next attempt; None if the time is over. `retry_after`: the queue's estimate."""
        left = self._ends - time.monotonic()
        if left <= 0:
            return None
        wait = 1.0 if retry_after is None else retry_after
        # jitter: several producers may wait for the same room
        return min(left, max(_SHORTEST, min(_LONGEST, wait * random.uniform(0.75, 1.25))))  # noqa: S311 (jitter, no secret)


class Backpressure:
    """The jobs of one call that a full queue refused, until the call's timeout.

    Their order stays the same.
    """

    def __init__(self, jobs: Sequence[NewJob], answers: Answers, timeout: float) -> None:
        self._jobs = jobs
        self._patience = Patience(timeout)
        self.answers = list(answers)
        self._waiting = self._refused(range(len(jobs)))

    @property
    def jobs(self) -> list[NewJob]:
        """The jobs to send again."""
        return [self._jobs[place] for place in self._waiting]

    def pause(self) -> float | None:
        """Seconds until the next attempt; None if no job waits or the time is over."""
        if not self._waiting:
            return None
        first = self.answers[self._waiting[0]]
        retry_after = None if first is None else first.retry_after
        return self._patience.pause(None if retry_after is None else retry_after / 1000)

    def tried(self, answers: Answers) -> None:
        """Record the answers for `jobs`."""
        for place, answer in zip(self._waiting, answers, strict=True):
            self.answers[place] = answer
        self._waiting = self._refused(self._waiting)

    def failed(self, error: PenstockError) -> None:
        """Record that the store did not answer for `jobs`; earlier answers for the other jobs stay."""
        lost = isinstance(error, EnqueueUnknown)
        cause = error.cause if isinstance(error, EnqueueUnknown) else str(error)
        status = EnqueueStatus.UNKNOWN if lost else EnqueueStatus.FAILED
        self.tried([Enqueued(status, job.id, cause=cause) for job in self.jobs])

    def _refused(self, places: Sequence[int]) -> list[int]:
        return [place for place in places if _waits(self.answers[place])]


def retry_while_full(
    jobs: Sequence[NewJob], answers: Answers, timeout: float, again: Callable[[list[NewJob]], Answers]
) -> Answers:
    """Send refused jobs again until all are stored or `timeout` (s) is over; return all answers."""
    if not any(map(_waits, answers)) or in_loop():
        return answers
    waiting = Backpressure(jobs, answers, timeout)
    while (pause := waiting.pause()) is not None:
        time.sleep(pause)
        try:
            waiting.tried(again(waiting.jobs))
        except (EnqueueError, StoreError) as error:
            waiting.failed(error)
    return waiting.answers


async def aretry_while_full(
    jobs: Sequence[NewJob],
    answers: Answers,
    timeout: float,
    again: Callable[[list[NewJob]], Awaitable[Answers]],
) -> Answers:
    """Like `retry_while_full`, without blocking the event loop."""
    if not any(map(_waits, answers)):
        return answers
    waiting = Backpressure(jobs, answers, timeout)
    while (pause := waiting.pause()) is not None:
        await asyncio.sleep(pause)
        try:
            waiting.tried(await again(waiting.jobs))
        except (EnqueueError, StoreError) as error:
            waiting.failed(error)
    return waiting.answers


def in_loop() -> bool:
    """Whether an event loop runs in this thread. Blocking it could wait for work of the same loop."""
    return running_loop() is not None


def warn_in_loop(what: str, instead: str) -> None:
    """Warn once per process that a call blocks the event loop of this thread.

    The stack level fits a user's call that reaches this function through two Penstock functions.
    """
    global _warned
    if not _warned:
        _warned = True
        text = f"{what} blocks the event loop of this thread until the store answers: use `{instead}`"
        warnings.warn(text, BlockingCallWarning, stacklevel=5)


def _waits(answer: Enqueued | None) -> bool:
    return answer is not None and answer.status is EnqueueStatus.FULL and answer.waits
