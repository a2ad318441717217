"""Entry point of ASGI servers: Django, and the dashboard of the jobs below /dashboard/."""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
django_application = get_asgi_application()

from mysite.dashboard import dashboard  # noqa: E402  (models need a Django that is set up)


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http" and f"{scope['path']}/".startswith("/dashboard/"):
        await dashboard({**scope, "root_path": "/dashboard"}, receive, send)
    else:
        await django_application(scope, receive, send)
