"""Requests that enqueue jobs. Views are plain functions; an async view uses `await task.aenqueue(...)`."""

import json
from functools import partial

from django.db import transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.http import require_POST
from penstock import JobNotFound, StoreUnavailable

from mysite.jobs import app
from newsletter.models import Subscriber
from newsletter.tasks import welcome


@require_POST
def subscribe(request: HttpRequest) -> JsonResponse:
    try:
        with transaction.atomic():
            subscriber = Subscriber.objects.create(email=json.loads(request.body)["email"])
            job = welcome.using(id=f"welcome-{subscriber.pk}").job(subscriber.pk)
            # After the commit: a worker may start the job at once, and must find the subscriber.
            transaction.on_commit(partial(app.enqueue_many, [job]))
    except StoreUnavailable:
        return JsonResponse({"error": "jobs are not available"}, status=503, headers={"Retry-After": "5"})
    return JsonResponse({"subscriber": subscriber.pk, "job": job.id}, status=201)


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
