"""Sends mails, at the rate that `shop/app.py` sets for the queue."""

from penstock import current_job

from shop.app import app
from shop.database import Mail, Session


@app.task(queue="mail", timeout="30s", retention="1d")
def send_mail(to: str, text: str) -> bool:
    """Send one mail. A second run of the same job sends nothing."""
    key = current_job().id
    with Session.begin() as db:
        if db.get(Mail, key) is not None:
            return False
        db.add(Mail(key=key, to=to, text=text))
    return True
