"""Removes old data every night."""

from datetime import timedelta

from sqlalchemy import delete

from shop.app import app
from shop.database import Mail, Session, now


@app.periodic("0 3 * * *", tz="Europe/Berlin")
@app.task(queue="maintenance")
def remove_old_mails(days: int = 30) -> None:
    with Session.begin() as db:
        db.execute(delete(Mail).where(Mail.sent_at < now() - timedelta(days=days)))
