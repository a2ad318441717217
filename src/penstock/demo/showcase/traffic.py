"""New jobs for the shop while its dashboard is open."""

from __future__ import annotations

import asyncio
import itertools
import random
from decimal import Decimal
from typing import Any, Literal

from penstock.demo.showcase import shop
from penstock.demo.showcase.present import start_work

__all__ = ["go_on"]

#: Jobs per step, and seconds between two steps.
_JOBS, _EVERY = (1, 2), 2.0
_LANGUAGES: tuple[Literal["en", "de", "fr"], ...] = ("en", "de", "fr")


async def go_on(seed: int = 7) -> None:
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
