from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from mysite.jobs import app
from newsletter.models import Subscriber
from newsletter.tasks import send


class Command(BaseCommand):
    help = "Enqueue a letter to every subscriber."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("text")

    def handle(self, *args: Any, text: str, **options: Any) -> None:
        subscribers = Subscriber.objects.values_list("pk", flat=True)
        handles = app.enqueue_many([send.job(subscriber, text) for subscriber in subscribers])
        self.stdout.write(f"{len(handles)} letters enqueued")
