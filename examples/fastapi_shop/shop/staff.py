"""People who work at the shop: their login, and the dashboard of the jobs that they see at /staff/jobs/."""

import os
import secrets
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from penstock.web.dashboard import Dashboard, Visitor

from shop.app import app

#: Passwords by name, from STAFF="ann:secret bob:other". A real shop keeps hashes, or has a single sign-on.
PASSWORDS = dict(one.split(":", 1) for one in os.environ.get("STAFF", "").split())
#: What each may do with jobs; others may look.
RIGHTS = {"ann": "admin"}

FORM = """<!doctype html><title>Log in</title><form method="post"><label>Name <input name="name"></label>
<label>Password <input name="password" type="password"></label><button>Log in</button></form>"""

routes = APIRouter(prefix="/staff")


@routes.get("/login")
async def login_form() -> HTMLResponse:
    return HTMLResponse(FORM)


@routes.post("/login")
async def log_in(request: Request, next: str = "") -> Response:
    given = parse_qs((await request.body()).decode())
    name, password = given.get("name", [""])[0], given.get("password", [""])[0]
    known = PASSWORDS.get(name, "")
    if not known or not secrets.compare_digest(password.encode(), known.encode()):
        return HTMLResponse(FORM, 401)
    request.session["staff"] = name
    return RedirectResponse(next if next.startswith("/staff/") else "/staff/jobs/", 303)


def visitor(request: Request) -> Visitor | None:
    """Who looks at the dashboard: the session of the shop says so."""
    name = request.session.get("staff")
    return Visitor.of(name, RIGHTS.get(name, "read")) if name in PASSWORDS else None


dashboard = Dashboard(app, login=visitor, login_url="/staff/login")
