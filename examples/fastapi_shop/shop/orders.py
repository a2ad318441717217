"""Confirms orders. A second run of each task, after a crash, changes nothing."""

import logging
from contextlib import suppress
from datetime import timedelta

from penstock import EnqueueUnknown, JobExists, StoreUnavailable
from sqlalchemy import select

from shop.app import app
from shop.database import Order, Session, now
from shop.mail import send_mail

logger = logging.getLogger(__name__)


@app.task(queue="orders", timeout="1m")
def confirm(order_id: int) -> None:
    """Confirm an order by mail."""
    with Session.begin() as db:
        order = db.get_one(Order, order_id)
        if order.confirmed_at is not None:
            return
        # The mail first: if the process dies here, the next attempt enqueues the same id again.
        with suppress(JobExists):
            send_mail.using(id=f"order-{order_id}").enqueue(
                order.email, f"Thank you for {order.quantity} × {order.product}"
            )
        order.confirmed_at = now()


def enqueue_confirm(order_id: int) -> str:
    """Enqueue the confirmation of a committed order; returns the id of the job.

    The id is that of the order, so that an order has one such job at a time. The order is already stored, so
    a store that is away is no reason to refuse it: `confirm_forgotten` enqueues the job later.
    """
    job = f"confirm-{order_id}"
    try:
        confirm.using(id=job).enqueue(order_id)
    except JobExists:
        pass
    except (StoreUnavailable, EnqueueUnknown) as error:
        logger.warning("order %d is confirmed later: %s", order_id, error)
    return job


@app.periodic(every="1m", overlap="skip")
@app.task(queue="orders")
def confirm_forgotten() -> None:
    """Enqueue orders whose web process died, or did not reach the store, after its commit."""
    with Session() as db:
        old = now() - timedelta(minutes=1)
        orders = db.scalars(
            select(Order.id).where(Order.confirmed_at.is_(None), Order.created_at < old)
        ).all()
    for order_id in orders:
        enqueue_confirm(order_id)
