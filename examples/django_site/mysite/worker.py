"""Entry point of workers, `penstock worker mysite.worker:app`: sets Django up, as wsgi.py and asgi.py do."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
django.setup()

from mysite.jobs import app  # noqa: E402  (models need a Django that is set up)

__all__ = ["app"]
