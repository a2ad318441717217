"""The dashboard of the jobs at /dashboard/, for staff who are logged in to Django."""

import asyncio
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AbstractUser
from django.http import HttpRequest
from penstock.web.dashboard import Dashboard, Visitor
from starlette.requests import Request

from mysite.database import with_database
from mysite.jobs import app


@with_database
def visitor_of(session_key: str | None) -> Visitor | None:
    """The user of a session, with the rights on jobs that this user has here."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    if not isinstance(user, AbstractUser):  # nobody is logged in
        return None
    if user.is_superuser:
        return Visitor.of(user.get_username(), "admin")
    return Visitor.of(user.get_username(), *(["read"] if user.is_staff else []))  # others see nothing


async def visitor(request: Request) -> Visitor | None:
    return await asyncio.to_thread(visitor_of, request.cookies.get(settings.SESSION_COOKIE_NAME))


dashboard = Dashboard(app, login=visitor, login_url="/admin/login/")
