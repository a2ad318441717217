"""Tasks of the newsletter. A second run of each, after a crash, changes nothing."""

from contextlib import suppress
from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from penstock import JobExists, current_job

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


def enqueue_welcome(subscriber_id: int) -> None:
    """Enqueue the first letter to a subscriber who is stored; one such job at a time."""
    with suppress(JobExists):
        welcome.using(id=f"welcome-{subscriber_id}").enqueue(subscriber_id)


@app.periodic(every="1m", overlap="skip")
@app.task(queue="mail")
@with_database
def welcome_forgotten() -> None:
    """Enqueue subscribers whose web process died, or did not reach the store, after its commit."""
    old = timezone.now() - timedelta(minutes=1)
    for subscriber in Subscriber.objects.filter(welcomed_at=None, created_at__lt=old):
        enqueue_welcome(subscriber.pk)
