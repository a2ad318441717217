"""Computes reports, in processes of their own: they use a core, and can be cancelled at any time."""

from penstock import current_job
from sqlalchemy import extract, func, select

from shop.app import app
from shop.database import Order, Session


@app.task(run_in="process", queue="reports", timeout="10m", max_attempts=3, retention="1d")
def sales(year: int) -> dict[str, int]:
    """Sum up what was sold in each month of a year."""
    sold: dict[str, int] = {}
    for month in range(1, 13):
        current_job().progress(month, of=12, note="months")
        with Session() as db:
            total = select(func.sum(Order.quantity)).where(
                extract("year", Order.created_at) == year, extract("month", Order.created_at) == month
            )
            sold[f"{year}-{month:02}"] = db.scalar(total) or 0
    return sold
