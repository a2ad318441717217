"""The last day of the shop: its jobs go through a store whose clock is set back.

So all facts are as they would be had they happened then: instants, attempts, statistics, groups of errors.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.app.outcome import error_of
from penstock.client.job_call import JobCall
from penstock.core.clock import ManualClock
from penstock.core.ids import mint, mint_token
from penstock.core.job import AttemptError, Job, NewJob, State
from penstock.core.lifecycle import Transition, decide
from penstock.core.outcomes import Outcome, Raised, Returned
from penstock.core.schedule import id_at
from penstock.core.stats import MS_BOUNDS, SECOND_BOUNDS, TaskStats, sketch_of
from penstock.demo.showcase import shop
from penstock.stores.contract import ErrorCount, Settlement, Share, StatsReport, Store, TaskCount
from penstock.worker.worker_stats import group_id, normalised

HOURS = 24
#: Steps (ms): of the last hour, whose charts have minutes, and before. A step before it has the jobs of this
#: many minutes, not of all: the sample is made in seconds.
_MINUTE, _SLOT, _SLOT_MINUTES = 60_000, 15 * 60_000, 3
#: At the quietest time of the day, the share of the jobs of the busiest.
_QUIET = 0.35
_LEASE = 60_000
_WORKERS = ("web-1", "web-2", "batch-1")
_JSON = b'"done"'
#: Where the code of the sample is, as tracebacks have it.
_HERE = str(Path(__file__).parent)

Call = Callable[[int], JobCall[Any]]


@dataclass(frozen=True)
class _Kind:
    """A task: its calls, how many come per minute at the busiest hour, how long they wait and run (ms), and
    the share of attempts that fails with these errors."""

    call: Call
    number: float
    waits: int
    runs: int
    failing: float = 0.0
    fails: Callable[[Job], None] | None = None


def _fail_payment(job: Job) -> None:
    given = json.loads(job.spec.payload)
    shop.pay(given["order"], Decimal(given["amount"]), "stolen" if _digit(job) % 3 else "slow")


def _fail_webhook(job: Job) -> None:
    shop.post(f"https://{'flaky' if _digit(job) % 4 else 'broken'}.example/hook", _digit(job))


def _fail_import(_: Job) -> None:
    shop.read_prices('{"price": 12,50}')


def _fail_mail(job: Job) -> None:
    shop.check_address(f"customer {job.id[-3:]}")


def _fail_picture(job: Job) -> None:
    shop.read_picture(f"/uploads/{job.id[-6:]}.tiff")


def _fail_stock(_: Job) -> None:
    shop.post("https://flaky.example/stock", 7)


def _digit(job: Job) -> int:
    return int(job.id[-2:], 16)


_KINDS: tuple[_Kind, ...] = (
    _Kind(lambda n: shop.send_receipt.job(4000 + n, f"c{n}@example.org"), 14, 80, 70, 0.003, _fail_mail),
    _Kind(
        lambda n: shop.charge_card.job(4000 + n, Decimal("49.90"), shop.Currency.EUR, f"tok{n}"),
        8, 300, 380, 0.03, _fail_payment,
    ),
    _Kind(lambda n: shop.make_thumbnail.job(f"{n}.jpg", [64, 256]), 9, 150, 260, 0.006, _fail_picture),
    _Kind(
        lambda n: shop.call_webhook.job("https://partner.example/hook", {"order": 4000 + n}),
        7, 60, 140, 0.04, _fail_webhook,
    ),
    _Kind(lambda n: shop.sync_stock.job(f"sku-{n % 40}"), 6, 20, 210),
    _Kind(lambda n: shop.count_sales.job("north"), 2, 40, 320),
    _Kind(lambda n: shop.import_catalogue.job(f"supplier {n % 9}", 500), 0.1, 900, 9_000, 0.05, _fail_import),
)  # fmt: skip


#: The periodic entries by name: what their jobs do.
_ENTRIES = {
    "bestsellers": _Kind(lambda _: shop.check_bestsellers.job(), 1, 30, 60, 0.06, _fail_stock),
    "clean-up": _Kind(lambda _: shop.clean_up.job(), 1, 40, 700),
    "sales-of-yesterday": _Kind(lambda _: shop.mail_sales.job(), 1, 40, 90),
}


async def live_through(open_store: Callable[[ManualClock], Store], now: int, seed: int = 7) -> int:
    """Enqueue, run and settle the jobs of the last hours; returns how many."""
    clock = ManualClock(now - HOURS * 3_600_000)
    past = _Past(open_store(clock), clock, random.Random(seed))  # noqa: S311 (a sample, no secret)
    try:
        for slot in range((HOURS - 1) * 3_600_000 // _SLOT):
            await past.live(slot, _SLOT, _SLOT_MINUTES * _busy(now - clock.now()))
        for minute in range(60):
            await past.live(1_000 + minute, _MINUTE, _busy(now - clock.now()))
    finally:
        past.store.close()
    return past.jobs


def _busy(ago: int) -> float:
    """The share of the busiest time, this long (ms) ago: now is the busiest, half a day ago the quietest."""
    return _QUIET + (1 - _QUIET) * (1 + math.cos(2 * math.pi * ago / 86_400_000)) / 2


class _Past:
    def __init__(self, store: Store, clock: ManualClock, luck: random.Random) -> None:
        self.store = store
        self.jobs = 0
        self._clock = clock
        self._luck = luck
        self._source = mint()
        self._reports = 0

    async def live(self, slot: int, length: int, minutes: float) -> None:
        """One step: what every task had to do in this many busy minutes."""
        begins = self._clock.now()
        for kind in _KINDS:
            number = int(kind.number * minutes * self._luck.uniform(0.7, 1.3) + self._luck.random())
            if number:
                await self._do(kind, [self._call(kind.call(slot * 50 + n)) for n in range(number)])
        await self._run_entries(begins, begins + length)
        await self.store.promote(shop.QUEUES, limit=500)
        self._clock.advance(max(0, begins + length - self._clock.now()))

    async def _run_entries(self, begins: int, ends: int) -> None:
        """The latest job of each periodic entry in this time."""
        for ref, entry in shop.app.periodic_entries.items():
            kind = _ENTRIES[ref.id]
            for at in entry.schedule.latest(begins, ends, 1):
                await self._do(kind, [replace(kind.call(0).new(), id=id_at(ref.id, at))])

    async def _do(self, kind: _Kind, calls: Sequence[NewJob]) -> None:
        queue = calls[0].queue
        await self.store.enqueue(calls)
        self._clock.advance(round(kind.waits * self._luck.uniform(0.5, 2)))
        await self.store.sample_depths()
        worker, share = self._luck.choice(_WORKERS), Share(queue, 500, 500)
        fetched = await self.store.fetch([share], limit=500, lease=_LEASE, worker=worker, token=mint_token())
        self._clock.advance(ran := round(kind.runs * self._luck.uniform(0.6, 1.8)))
        moves = [self._move(kind, job) for job in fetched.jobs]
        ends = [
            Settlement(job.lease, move, _JSON if move.state is State.COMPLETED else None)
            for job, move in zip(fetched.jobs, moves, strict=True)
        ]
        await self.store.settle(ends)
        self.jobs += len(calls)
        if ends:
            await self._report(kind, fetched.jobs, moves, ran)

    def _call(self, call: JobCall[Any]) -> NewJob:
        """The job of a call, with an id of that time."""
        digits, made = f"{self._clock.now():012x}", call.new()
        return replace(made, id=f"{digits[:8]}-{digits[8:]}{mint()[13:]}")

    def _move(self, kind: _Kind, job: Job) -> Transition:
        now, outcome = self._clock.now(), _outcome(kind, job, self._clock.now(), self._luck)
        return decide(job, outcome, now, self._luck.random())

    async def _report(self, kind: _Kind, jobs: Sequence[Job], moves: Sequence[Transition], ran: int) -> None:
        self._reports += 1
        queue, task = jobs[0].queue, jobs[0].spec.task
        # not what the steps of this sample make of it: a retry waits for the next one
        waits = sorted(round(kind.waits * self._luck.uniform(0.3, 1.6)) for _ in jobs)
        runs = sorted(ran / 1000 * self._luck.uniform(0.5, 1.5) for _ in jobs)
        failed = sum(move.error is not None for move in moves)
        stats = TaskStats(
            started=len(jobs),
            processed=len(jobs),
            failed=failed,
            retried=sum(move.state is State.RETRYABLE for move in moves),
            dead=sum(move.state is State.DEAD for move in moves),
            waited=sum(waits) * 1_000,
            ran=round(sum(runs) * 1e6),
            waits=sketch_of(waits, MS_BOUNDS),
            runs=sketch_of(runs, SECOND_BOUNDS),
        )
        errors = list(_groups(task, jobs, moves))
        report = StatsReport(queue, self._source, self._reports, [TaskCount(task, stats)], errors)
        await self.store.add_stats([report])


def _outcome(kind: _Kind, job: Job, now: int, luck: random.Random) -> Outcome:
    if kind.fails is None or luck.random() > kind.failing:
        return Returned()
    # most of the errors of a day are for good: those of the retries are not shown any more
    return Raised(_error(kind.fails, job, now), final=luck.random() < 0.35)


def _error(fails: Callable[[Job], None], job: Job, now: int) -> AttemptError:
    try:
        fails(job)
    except Exception as error:  # noqa: BLE001  # boundary: the error of a sample job
        frames = error.__traceback__
        for _ in range(2):  # the frames of this module
            frames = frames and frames.tb_next
        made = error_of(job, now, error.with_traceback(frames))
        traceback = made.traceback.replace(_HERE, "/srv/shop").replace(f"{shop.__name__}.", "shop.")
        return replace(made, traceback=traceback)
    return AttemptError(job.attempt, now, "RuntimeError", "the sample did not fail")


def _groups(task: str, jobs: Sequence[Job], moves: Sequence[Transition]) -> Iterator[ErrorCount]:
    found: dict[str, ErrorCount] = {}
    for job, move in zip(jobs, moves, strict=True):
        if (error := move.error) is not None:
            message = normalised(error.message)
            group = group_id(task, error.kind, message)
            count = found[group].count + 1 if group in found else 1
            found[group] = ErrorCount(group, task, error.kind, message, count, job.id)
    yield from found.values()
