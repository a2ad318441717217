"""Requests that enqueue jobs. Views are plain functions; an async view uses `await task.aenqueue(...)`."""

import json

from django.db import transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from penstock import JobNotFound

from mysite.jobs import app
from newsletter.models import Subscriber
from newsletter.tasks import enqueue_welcome


@csrf_exempt  # anybody may subscribe: no session is asked for
@require_POST
@transaction.atomic
def subscribe(request: HttpRequest) -> JsonResponse:
    subscriber = Subscriber.objects.create(email=json.loads(request.body)["email"])
    # After the commit: a worker may start the job at once, and must find the subscriber.
    # Robust: if the store is away, the error is logged, and `welcome_forgotten` enqueues the job later.
    transaction.on_commit(lambda: enqueue_welcome(subscriber.pk), robust=True)
    return JsonResponse({"subscriber": subscriber.pk, "job": f"welcome-{subscriber.pk}"}, status=201)


def show_job(request: HttpRequest, id: str) -> JsonResponse:
    try:
        job = app.handle(id).job()
    except JobNotFound:
        job = None
    if job is None:
        raise Http404
    return JsonResponse(job.to_dict())


def health(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})
