from django.db import models


class Subscriber(models.Model):
    email = models.EmailField()
    created_at = models.DateTimeField(auto_now_add=True)
    welcomed_at = models.DateTimeField(null=True)


class Letter(models.Model):
    """A letter that was sent. A real site calls a mail provider, with `key` as its idempotency key."""

    key = models.CharField(max_length=128, primary_key=True)
    subscriber = models.ForeignKey(Subscriber, on_delete=models.CASCADE)
    text = models.TextField()
