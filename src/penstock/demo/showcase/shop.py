"""A shop with background jobs of many kinds; `penstock worker penstock.demo.showcase.shop:app` runs them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Literal

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.app.queue import QueueDefaults
from penstock.core.relations import Batch
from penstock.demo.demo_folder import NAMESPACE, URL
from penstock.workflows import current_flow

QUEUES = ("mail", "payments", "images", "imports", "webhooks", "stock", "search", "orders", "reports")
#: How often a call of another service fails.
_BAD_LUCK = 0.04

app = App(
    os.environ.get(URL, "memory://"),
    namespace=os.environ.get(NAMESPACE, ""),
    name="shop",
    retention="2d",
    queues={
        "mail": QueueDefaults(rate="20/s", burst=40),
        "payments": QueueDefaults(max_running=4),
        "exports": QueueDefaults(max_size=5_000),
    },
)


class CardDeclined(Exception):
    """The bank has refused a payment."""


class SupplierFault(Exception):
    """The file of a supplier cannot be used."""


class Currency(Enum):
    EUR = "EUR"
    GBP = "GBP"
    SEK = "SEK"


@dataclass
class Product:
    sku: str
    name: str
    price: Decimal


@app.task(name="shop.send_receipt", queue="mail", max_attempts=5)
async def send_receipt(
    order: int, email: str, lang: Literal["en", "de", "fr"] = "en", copy: bool = False
) -> str:
    """Send the receipt of an order.

    A copy goes to the accounts department.
    """
    await asyncio.sleep(random.uniform(0.02, 0.12))  # noqa: S311 (a demo, no secret)
    check_address(email)
    return f"receipt for order {order} ({lang}){' and copy' if copy else ''}"


def check_address(email: str) -> None:
    if "@" not in email:
        raise ValueError(f"{email!r} is no address")


@app.task(name="shop.charge_card", queue="payments", max_attempts=3, retry="20s")
async def charge_card(order: int, amount: Decimal, currency: Currency, card_token: str) -> dict[str, str]:
    """Charge the card of a customer."""
    await asyncio.sleep(random.uniform(0.1, 0.6))  # noqa: S311 (a demo, no secret)
    pay(order, amount, card_token)
    return {"payment": hashlib.sha256(card_token.encode()).hexdigest()[:12], "currency": currency.value}


def pay(order: int, amount: Decimal, card_token: str) -> None:
    try:
        _ask_bank(order, amount, card_token)
    except PermissionError as refusal:
        raise CardDeclined(f"order {order}: the bank refuses {amount}") from refusal


def _ask_bank(order: int, amount: Decimal, card_token: str) -> None:
    if card_token == "stolen":  # noqa: S105 (a demo)
        raise PermissionError("402 do_not_honour")
    if card_token == "slow" or random.random() < _BAD_LUCK:  # noqa: S105, S311 (a demo, no secret)
        raise TimeoutError("the bank has not answered within 10 s")


@app.task(name="shop.make_thumbnail", queue="images")
def make_thumbnail(path: str, sizes: list[int]) -> list[str]:
    """Make small pictures of a large one."""
    read_picture(path)
    for n, _ in enumerate(sizes, 1):
        time.sleep(random.uniform(0.05, 0.2))  # noqa: S311 (a demo, no secret)
        current_job().progress(n, of=len(sizes), note=path)
    return [f"{path}@{size}" for size in sizes]


def read_picture(path: str) -> None:
    if path.endswith(".tiff"):
        raise OSError(f"cannot identify image file '{path}'")


@app.task(name="shop.import_catalogue", queue="imports", timeout="1h", max_attempts=1)
async def import_catalogue(supplier: str, rows: int, pause: float = 0.5) -> int:
    """Import the products of a supplier, row by row."""
    job = current_job()
    job.log(f"{supplier}: {rows:,} rows")
    for row in range(rows):
        if row % 25 == 0:
            job.progress(row, of=rows, note=f"row {row:,} of {supplier}")
        if row and row % 100 == 0:
            job.log(f"{row:,} rows are in; {rows - row:,} are left")
        await asyncio.sleep(pause)
    if supplier.startswith("broken"):
        read_prices('{"price": 12,50}')
    return rows


def read_prices(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SupplierFault("the price list cannot be read") from error


@app.task(name="shop.call_webhook", queue="webhooks", max_attempts=8, retry=["30s", "2m", "10m", "1h"])
async def call_webhook(url: str, body: dict[str, str | int]) -> int:
    """Tell a partner what has happened."""
    await asyncio.sleep(random.uniform(0.03, 0.3))  # noqa: S311 (a demo, no secret)
    return post(url, len(body))


def post(url: str, size: int) -> int:
    if "broken" in url:
        raise ConnectionResetError("[Errno 104] Connection reset by peer")
    if "flaky" in url or random.random() < _BAD_LUCK:  # noqa: S311 (a demo, no secret)
        raise ConnectionError(f"[Errno 111] Connect call failed ('203.0.113.{size}', 443)")
    return 200


@app.task(name="shop.sync_stock", queue="stock", concurrency_key="sku")
async def sync_stock(sku: str, seconds: float = 0.2) -> None:
    """Compare the stock of a product; one job of a product at a time."""
    await asyncio.sleep(seconds)


@app.task(name="shop.index_products", queue="search", batch=Batch(max_size=60, max_wait="20m"))
async def index_products(products: list[Product]) -> int:
    """Put products into the search index, many at once."""
    await asyncio.sleep(0.3)
    return len(products)


@app.task(name="shop.fulfil_order", queue="orders")
async def fulfil_order(order: int, items: list[str]) -> str:
    """Take an order from the payment to the parcel."""
    flow = current_flow()
    await flow.step("reserve stock", _reserve, items)
    await flow.wait_for("approved", key=order, timeout="3d", of=str)
    return await flow.step("hand over", _hand_over, order)


async def _reserve(items: list[str]) -> int:
    await asyncio.sleep(0.1)
    return len(items)


async def _hand_over(order: int) -> str:
    return f"order {order} is on its way"


@app.task(name="shop.count_sales", queue="reports")
async def count_sales(region: str) -> int:
    """Add up the sales of a region."""
    await asyncio.sleep(random.uniform(0.1, 0.5))  # noqa: S311 (a demo, no secret)
    if region == "atlantis":
        raise LookupError("there is no region 'atlantis'")
    return len(region) * 1_000


@app.task(name="shop.write_report", queue="reports", max_attempts=2, retry="1m")
async def write_report(sales: list[int], title: str = "Sales") -> str:
    """Write the report of all regions."""
    return f"{title}: {sum(sales):,}"


@app.periodic("*/2 * * * *", name="bestsellers")
@app.task(name="shop.check_bestsellers", queue="stock")
async def check_bestsellers() -> int:
    """Look whether bestsellers are in stock."""
    return random.randint(20, 25)  # noqa: S311 (a demo, no secret)


@app.periodic("0 3 * * *", tz="Europe/Berlin", name="clean-up")
@app.task(name="shop.clean_up", queue="reports")
async def clean_up() -> int:
    """Remove what nobody needs any more."""
    return 0


@app.periodic("30 7 * * 1-5", tz="Europe/Berlin", name="sales-of-yesterday")
@app.task(name="shop.mail_sales", queue="mail")
async def mail_sales(to: str = "sales@example.org") -> str:
    """Send the figures of yesterday."""
    return to
