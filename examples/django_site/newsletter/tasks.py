"""Tasks of the newsletter. A second run of each, after a crash, changes nothing."""

from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from penstock import current_job

from mysite.database import with_database
from mysite.jobs import app
from newsletter.models import Letter, Subscriber


@app.task(queue="mail", timeout="1m", retention="1d")
@with_database
def welcome(subscriber_id: int) -> None:
    """Send the first letter to a new subscriber."""
    with transaction.atomic():
        subscriber = Subscriber.objects.get(pk=subscriber_id)
        Letter.objects.get_or_create(
            key=current_job().id, defaults={"subscriber": subscriber, "text": "Welcome!"}
        )
        Subscriber.objects.filter(pk=subscriber_id, welcomed_at=None).update(welcomed_at=timezone.now())


@app.task(queue="mail", timeout="1m", retention="1d")
@with_database
def send(subscriber_id: int, text: str) -> None:
    """Send one letter of a newsletter."""
    Letter.objects.get_or_create(
        key=current_job().id, defaults={"subscriber_id": subscriber_id, "text": text}
    )


@app.periodic("0 4 * * *", tz="Europe/Berlin")
@app.task(queue="maintenance")
@with_database
def remove_forgotten() -> int:
    """Remove subscribers who were never welcomed."""
    old = timezone.now() - timedelta(days=7)
    return Subscriber.objects.filter(welcomed_at=None, created_at__lt=old).delete()[0]
