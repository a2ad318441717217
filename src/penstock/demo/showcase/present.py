"""What is open in the shop now, and new jobs while its dashboard is open."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from decimal import Decimal
from typing import Any, Literal

from penstock.core.job import State
from penstock.core.limits import LimitChange
from penstock.demo.showcase import shop
from penstock.inspector import Inspector, JobAct
from penstock.inspector.audit import AuditLog
from penstock.inspector.bulk_acts import BulkActs
from penstock.stores.contract import JobFilter, Store, TimeRange
from penstock.workflows import chord

_OPERATOR, _NIGHT = "user:ann", "user:bob"
#: Who does the steps of bulk acts; and how long ago (ms) the first of the mails to delay was enqueued.
_PROCESS, _A_WHILE = "demo", 600_000


async def fill_store(store: Store) -> None:
    """Add what waits now, and what operators did. The app of the shop has to use the same store."""
    await _enqueue_later()
    await _change_many(Inspector(store).bulk)
    await _operate(store)


async def start_work(store: Store) -> None:
    """Add what runs now: jobs that fail, wait for each other or take minutes, a batch, flows, and retries."""
    products = [
        shop.index_products.job(shop.Product(f"sku-{n}", f"Kettle {n}", Decimal("39.90"))) for n in range(97)
    ]
    broken = shop.import_catalogue.using(priority=5).job("broken supplier", 40, 0.5)
    same_product = [shop.sync_stock.job("sku-7", 240.0), *(shop.sync_stock.job("sku-7") for _ in range(6))]
    hooks = [shop.call_webhook.job("https://flaky.example/hook", {"order": n}) for n in range(12)]
    await shop.app.aenqueue_many([*products, broken, *same_product, *hooks])
    await _retry_dead(store)
    await _enqueue_flows()


async def _enqueue_later() -> None:
    app = shop.app
    late = [shop.send_receipt.using(delay=f"{n}m").job(6000 + n, f"c{n}@example.org") for n in range(5, 45)]
    unique = [
        shop.charge_card.using(delay="2h", unique_key=f"order-{n}", headers={"customer": f"c{n}"}).job(
            n, Decimal("19.99"), shop.Currency.SEK, "tok"
        )
        for n in range(3)
    ]
    await app.aenqueue_many([*late, *unique])
    for n in range(34):
        await app.aenqueue_raw("exports", b'{"customer": %d, "format": "csv"}' % n, "exports.write")
    for n in range(3):
        await app.aenqueue_raw("mail", b'{"to": "c%d@example.org"}' % n, "shop.send_newsletter")


async def _enqueue_flows() -> None:
    for order in (7001, 7002, 7003):
        await shop.fulfil_order.using(id=f"order-{order}").aenqueue(order, ["kettle", "cup"])
    regions = ["north", "south", "east", "west", "coast", "islands"]
    await chord([shop.count_sales.job(one) for one in regions], then=shop.write_report).aenqueue(
        name="sales of the week"
    )
    await chord(
        [shop.count_sales.job(f"{one} {n}") for one in regions for n in range(4)],
        then=shop.write_report.using(priority=3),
    ).aenqueue(name="sales of the year")
    await chord(
        [shop.count_sales.using(max_attempts=1).job(one) for one in ("north", "atlantis")],
        then=shop.write_report,
    ).aenqueue(name="sales of lost places")
    await chord(
        [
            shop.import_catalogue.job("Nordic Tools", 2_400, 0.25),
            shop.import_catalogue.job("Kvarn & Co", 900, 0.4),
            shop.count_sales.job("north"),
        ],
        then=shop.write_report,
    ).aenqueue(name="new catalogues")


async def _change_many(bulk: BulkActs) -> None:
    """Bulk acts: one has skipped jobs, one was aborted half-way."""
    since = time.time_ns() // 1_000_000 - _A_WHILE
    mails = JobFilter(queues=("mail",), task="shop.send_receipt", enqueued=TimeRange(since=since))
    await _step(bulk, (await bulk.start(JobAct.RESCHEDULE, mails, delay=1_800_000, by=_OPERATOR)).id)
    old = JobFilter(queues=("images",), states=(State.COMPLETED,))
    id = (await bulk.start(JobAct.DELETE, old, by=_OPERATOR)).id
    await _step(bulk, id, most=4)
    await bulk.abort(id, by=_OPERATOR)


async def _step(bulk: BulkActs, id: str, most: int = 100) -> None:
    """Do the steps of a bulk act until its end, or `most` of them."""
    for _ in range(most):
        if await bulk.step(id, _PROCESS) is None:
            return


async def _operate(store: Store) -> None:
    """What operators did, with its entries in the audit log."""
    inspector, log = Inspector(store), AuditLog(store)
    await inspector.pause("exports")
    await log.write(_OPERATOR, "queue.pause", "exports", address="192.0.2.10", status=303)
    await inspector.set_limits("webhooks", LimitChange.of(max_running=6))
    await log.write(
        _NIGHT, "queue.set", "webhooks", address="192.0.2.11", status=303, facts={"max_running": "6"}
    )
    await inspector.set_limits("images", LimitChange.of(rate="30/s"))
    await log.write(
        _OPERATOR, "queue.set", "images", address="192.0.2.10", status=303, facts={"rate": "30/s"}
    )
    page = await store.list_jobs(queue="mail", state=State.SCHEDULED, limit=3)
    refs = [job.ref for job in page.jobs]
    await inspector.cancel(refs)
    await log.write(_NIGHT, "jobs.cancel", [f"{ref.queue}/{ref.id}" for ref in refs], status=303)


async def _retry_dead(store: Store) -> None:
    inspector, log = Inspector(store), AuditLog(store)
    resets = JobFilter(queues=("webhooks",), states=(State.DEAD,), text="reset by peer")
    await _step(inspector.bulk, (await inspector.bulk.start(JobAct.RETRY, resets, by=_NIGHT)).id)
    dead = await store.list_jobs(queue="payments", state=State.DEAD, limit=2)
    refs = [job.ref for job in dead.jobs]
    await inspector.retry(refs)
    await log.write(_OPERATOR, "jobs.retry", [f"{ref.queue}/{ref.id}" for ref in refs], status=303)


# ── new jobs ─────────────────────────────────────────────────────────────────────────────────────


#: Jobs per step, and seconds between two steps.
_JOBS, _EVERY = (1, 2), 2.0
_LANGUAGES: tuple[Literal["en", "de", "fr"], ...] = ("en", "de", "fr")


async def keep_enqueueing(seed: int = 7) -> None:
    """Enqueue jobs until cancelled, from when workers run."""
    while not await shop.app.store.workers():  # noqa: ASYNC110 (a store has no event for this)
        await asyncio.sleep(0.1)
    await start_work(shop.app.store)
    luck = random.Random(seed)  # noqa: S311 (a sample, no secret)
    for number in itertools.count(9_000):
        calls = [_call(luck, number) for _ in range(luck.randint(*_JOBS))]
        await shop.app.aenqueue_many(calls)
        await asyncio.sleep(_EVERY)


def _call(luck: random.Random, n: int) -> Any:
    match luck.randrange(12):
        case 0 | 1 | 2 | 3:
            lang = luck.choice(_LANGUAGES)
            return shop.send_receipt.job(
                n, f"c{n}@example.org" if luck.random() < 0.98 else f"customer {n}", lang
            )
        case 4 | 5:
            token = "stolen" if luck.random() < 0.06 else f"tok{n}"
            return shop.charge_card.job(n, Decimal(luck.randint(500, 20_000)) / 100, shop.Currency.EUR, token)
        case 6 | 7:
            ending = "tiff" if luck.random() < 0.03 else "jpg"
            return shop.make_thumbnail.job(f"/uploads/{n}.{ending}", [64, 256, 1024])
        case 8 | 9:
            return shop.call_webhook.job("https://partner.example/hook", {"order": n, "state": "paid"})
        case 10:
            return shop.sync_stock.job(f"sku-{luck.randrange(40)}")
        case _:
            return shop.count_sales.job(luck.choice(["north", "south", "east", "west"]))
