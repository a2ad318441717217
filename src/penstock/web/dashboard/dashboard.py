"""The dashboard as an ASGI application, to be served alone or mounted under any path."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.app.app import App
from penstock.core.errors import ArgumentError, ConfigError, PenstockError, StoreUnavailable, Unsupported
from penstock.inspector import Inspector
from penstock.stores.contract import Capability, Store
from penstock.web.access_tokens import AccessToken, digest_of
from penstock.web.dashboard.background import BulkSteps, sampling
from penstock.web.dashboard.formats import plain_line
from penstock.web.dashboard.forms import FormError, local_path, read_form
from penstock.web.dashboard.identification import (
    Identification,
    Login,
    LoginTries,
    NoRightsError,
    Visitor,
    new_cookie,
    text_token,
)
from penstock.web.dashboard.json_tree import Redaction
from penstock.web.dashboard.pages import ACTS, PAGES
from penstock.web.dashboard.pulse import EventStreams, Pulse
from penstock.web.dashboard.rendering import Assets, Templates
from penstock.web.dashboard.security import Guard
from penstock.web.dashboard.settings import DashboardSettings
from penstock.web.dashboard.shared_reads import IS_LIVE, SharedReads, StoreTime
from penstock.web.dashboard.view import DashboardAct, DashboardPage, NotFoundError, Shared, View, lack
from penstock.web.hosts import HostRule

_log = logging.getLogger("penstock.web")

_THEMES = ("system", "light", "dark")
#: Headers of the requests of a page that is open already.
_OF_OPEN_PAGES = ("x-penstock-live", "x-penstock-part")
#: Seconds until a browser asks again for a page whose store did not answer.
_AGAIN = 5
Endpoint = Callable[[Request], Awaitable[Response]]


class Dashboard:
    """Pages for operators over the store of an app, as an ASGI application.

    Mount it under any path of another ASGI application. `login` is a function of that application: it gets
    the request and returns a `Visitor`, or None for a visitor who has to log in, at `login_url` if that is
    given. A visitor without rights sees nothing. Without `login`, visitors log in with an access token
    (`penstock tokens create`).
    """

    def __init__(
        self,
        app: App | Store,
        *,
        login: Login | None = None,
        settings: DashboardSettings | None = None,
        pages: Sequence[DashboardPage] = PAGES,
        acts: Sequence[DashboardAct] = ACTS,
        **given: Any,
    ) -> None:
        """`given`: settings by name, as in `Dashboard(app, read_only=True)`."""
        settings = settings or _settings(given)
        if settings.login_url and login is None:
            raise ConfigError("login_url= is where login= sends people: give login=, too")
        self._app = app if isinstance(app, App) else None
        self._settings, self._login_of_host = settings, login
        self._templates = Templates()
        self._assets = Assets()
        self._tries = LoginTries()
        self._pages = pages
        self._own_store = app.store if isinstance(app, App) else app
        self._show_store(self._own_store)
        hosts = HostRule(settings.hosts or (), open_to_all=settings.hosts is None)
        self._asgi: ASGIApp = Guard(Starlette(routes=self._routes(acts)), hosts)

    def _show_store(self, store: Store, *, keeps: bool = True) -> None:
        settings, inspector, reads = self._settings, Inspector(store), SharedReads(keeps=keeps)
        self._shared = Shared(
            store=store,
            app=self._app,
            inspector=inspector,
            settings=settings,
            redaction=Redaction(settings.redact),
            reads=reads,
            pulse=Pulse(inspector, settings.interval, reads.clear_brief),
            bulk_steps=BulkSteps(store, allowed=not settings.read_only and store.can(Capability.DOCUMENTS)),
        )
        self._identification = Identification(store, settings, self._login_of_host, lambda: reads.count(1))
        self._clock = StoreTime(self._store_time)
        self._streams = EventStreams(self._shared.pulse)
        self._cookie = f"penstock-{digest_of(store.url)[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None and (store := self._app.store) is not self._shared.store:
            # a test of the host application has given the app its own, and looks at what it has just done
            self._show_store(store, keeps=store is self._own_store)
        await self._asgi(scope, receive, send)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample the depths of queues and continue bulk acts while this block lasts, also without an open
        page.

        For servers that call `close` when they stop, before they wait for open requests.
        """
        shared = self._shared
        self._streams.are_closed = True
        shared.bulk_steps.wake()
        with sampling(shared.store, allowed=not shared.settings.read_only), shared.pulse.running():
            yield

    def close(self) -> None:
        """End the event streams, and leave bulk acts to others: the server stops."""
        self._shared.bulk_steps.stop()
        self._shared.pulse.close()

    @property
    def url(self) -> str:
        """The URL of the store, without secrets."""
        return self._shared.store.url

    @property
    def assets(self) -> Assets:
        """Scripts and style sheets."""
        return self._assets

    # ── routes ───────────────────────────────────────────────────────────────────────────────────

    def _routes(self, acts: Sequence[DashboardAct]) -> list[Route]:
        pages = [Route(page.path, self._page(page), methods=["GET"]) for page in self._pages]
        changes = [Route(act.path, self._act(act), methods=["POST"]) for act in acts]
        return [
            Route("/static/{version}/{name}", self._assets.answer, methods=["GET"]),
            Route("/events", self._guarded(self._events), methods=["GET"]),
            Route("/login", self._guarded(self._login_page), methods=["GET"]),
            Route("/login", self._guarded(self._login), methods=["POST"]),
            Route("/logout", self._guarded(self._logout), methods=["POST"]),
            Route("/theme", self._guarded(self._theme), methods=["POST"]),
            *pages,
            *changes,
            Route("/{path:path}", self._guarded(self._nothing), methods=["GET", "POST"]),
        ]

    def _page(self, page: DashboardPage) -> Endpoint:
        async def answer(request: Request) -> Response:
            live = "x-penstock-live" in request.headers
            IS_LIVE.set(live)
            if live and not self._shared.reads.may_refresh():
                return Response(status_code=204)
            view = await self._view(request)
            if view is None:
                return Response(status_code=401) if live else self._to_login(request)
            queue = view.queue if "{queue}" in page.path else None
            allowed = view.may_somewhere(page.act) if queue is None else view.may(page.act, queue)
            if not allowed:
                return self._message(view, 403, "Not allowed", f"You have no right to {page.right} here.")
            if lacks := lack(view.shared.store, page.path):
                return self._message(view, 501, "Not available", f"This store cannot {lacks.value}.")
            values = await page.show(view)
            if isinstance(values, Response):
                return values
            flash = None if live else _flash_of(request, self._flash_cookie, view.cookie)
            html = self._render(f"pages/{page.name}.html", view, {"page": page, "flash": flash, **values})
            answer = HTMLResponse(html)
            if flash is not None:
                answer.delete_cookie(self._flash_cookie, path=_cookie_path(request))
            return answer

        return self._guarded(answer)

    def _act(self, act: DashboardAct) -> Endpoint:
        async def answer(request: Request) -> Response:
            view = await self._view(request)
            if view is None:
                return await self._logged_out(request)
            view.form = await read_form(request, self._cookie_sent(request))
            queue = view.queue if "{queue}" in act.path else "*"
            if not (view.may_somewhere(act.act) if act.somewhere else view.may(act.act, queue)):
                why = "This dashboard is read-only." if self._shared.settings.read_only else ""
                says = why or f"You have no right to {act.right} here."
                return self._message(view, 403, "Not allowed", says)
            if lacks := lack(view.shared.store, act.path):
                return self._message(view, 501, "Not available", f"This store cannot {lacks.value}.")
            try:
                made = await act.do(view)
            except (ConfigError, ArgumentError) as error:
                return view.done(str(error), "/", failed=True)
            if isinstance(made, Response):
                return made
            assert act.shows is not None  # an act without a page returns an answer
            html = self._render(f"pages/{act.shows.name}.html", view, {"page": act.shows, **made})
            return HTMLResponse(html)

        return self._guarded(answer)

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint whose errors become pages, and whose session and message become cookies."""

        async def answer(request: Request) -> Response:
            try:
                made = await endpoint(request)
            except FormError as error:
                made = self._plain(request, error.status, "Not accepted", str(error))
            except NotFoundError as error:
                made = self._plain(request, 404, "Not found", str(error))
            except NoRightsError:
                made = self._plain(request, 403, "Not allowed", "Your account may not see this dashboard.")
            except (ConfigError, ArgumentError) as error:
                made = self._plain(request, 400, "Not accepted", str(error))
            except StoreUnavailable as error:
                made = self._away(request, str(error))
            except Unsupported as error:
                made = self._plain(request, 501, "Not available", str(error))
            except PenstockError as error:
                made = self._plain(request, 500, "This failed", str(error))
            except Exception as error:  # noqa: BLE001  # boundary: a fault becomes a page, and is logged
                _log.exception("%s %s failed", request.method, plain_line(request.scope["path"]))
                says = f"The dashboard failed ({type(error).__name__}); its log has the details."
                made = self._plain(request, 500, "This failed", says)
            self._set_cookies(request, made)
            return made

        return answer

    # ── who asks ─────────────────────────────────────────────────────────────────────────────────

    def _cookie_sent(self, request: Request) -> str | None:
        return request.cookies.get(self._cookie)

    def _session(self, request: Request) -> str:
        """The cookie of this session; a new one if the browser has sent none."""
        given = self._cookie_sent(request) or getattr(request.state, "cookie", None)
        if given is None or len(given) > 100:
            given = request.state.cookie = new_cookie()
        return given

    async def _view(self, request: Request) -> View | None:
        visitor = await self._identification.visitor(request, self._cookie_sent(request))
        if visitor is None:
            return None
        request.state.visitor = visitor
        view = self._of(request, visitor)
        view.now = await self._clock.now()
        return view

    async def _store_time(self) -> int:
        self._shared.reads.count(1)
        return await self._identification.tokens.now()

    def _of(self, request: Request, visitor: Visitor) -> View:
        return View(request, visitor, self._shared, self._session(request))

    def _set_cookies(self, request: Request, answer: Response) -> None:
        kept: dict[str, Any] = {"path": _cookie_path(request), "httponly": True, "samesite": "lax"}
        kept["secure"] = request.url.scheme == "https"
        if (cookie := getattr(request.state, "cookie", None)) is not None:
            answer.set_cookie(self._cookie, cookie, **kept)
        if (flash := getattr(request.state, "flash", None)) is not None:
            text = "|".join(flash)[:300]
            token = text_token(self._session(request), text)
            answer.set_cookie(self._flash_cookie, quote(f"{token}|{text}", safe=""), max_age=60, **kept)

    @property
    def _flash_cookie(self) -> str:
        return f"{self._cookie}-said"

    # ── login ────────────────────────────────────────────────────────────────────────────────────

    @property
    def _has_login(self) -> bool:
        """Whether there is a page at which visitors log in."""
        return self._identification.by_token or bool(self._settings.login_url)

    def _to_login(self, request: Request) -> Response:
        if not self._has_login:
            return self._plain(request, 403, "Not allowed", "Your account may not see this dashboard.")
        if request.method == "POST" or request.url.path.endswith("/events"):
            return self._plain(request, 401, "Logged out", "Log in again, and repeat this.")
        view = self._of(request, Visitor("", ()))
        # a path like //evil.example is another site
        here = local_path(view.here(), view.base, view.link("/"))
        return RedirectResponse(self._login_link(view, here), 303)

    def _login_link(self, view: View, next: str) -> str:
        """The address of the login page, which leads back to a page of this dashboard."""
        if self._identification.by_token:
            return view.link("/login", next=next if next != view.link("/") else None)
        url = self._settings.login_url
        return f"{url}{'&' if '?' in url else '?'}{urlencode({'next': next})}"

    async def _logged_out(self, request: Request) -> Response:
        """What somebody has entered is not done, but not lost either."""
        if not self._has_login:
            return self._to_login(request)
        form = await read_form(request, self._cookie_sent(request))
        view = self._of(request, Visitor("", ()))
        back = local_path(form.get("back"), view.base, view.link("/"))
        values = {"entered": form.entered(), "login": self._login_link(view, back)}
        return HTMLResponse(self._render("logged_out.html", view, {**values, "title": "Logged out"}), 401)

    async def _login_page(self, request: Request) -> Response:
        next = self._of(request, Visitor("", ())).asked("next")
        return await self._show_login(request, "", 200, next)

    async def _show_login(self, request: Request, error: str, status: int, next: str) -> Response:
        if not self._identification.by_token:
            raise NotFoundError("Log in where this dashboard is mounted.")
        view = self._of(request, Visitor("", ()))
        known = bool(await self._identification.tokens.all())
        values = {"error": error, "known": known, "next": next, "refresh": "never"}
        return HTMLResponse(self._render("login.html", view, values), status)

    async def _login(self, request: Request) -> Response:
        if not self._identification.by_token:
            raise NotFoundError("Log in where this dashboard is mounted.")
        form = await read_form(request, self._cookie_sent(request))
        found = await self._identification.token_of(form.get("token"))
        if not isinstance(found, AccessToken):
            if self._tries.too_many(request.client.host if request.client else ""):
                raise FormError(429, "too many wrong logins: wait a minute")
            return await self._show_login(request, found, 401, form.get("next"))
        request.state.cookie = new_cookie()  # nobody can have set it before
        await self._identification.sessions.begin(request.state.cookie, found)
        base = str(request.scope.get("root_path", "")).rstrip("/")
        return RedirectResponse(local_path(form.get("next"), base, f"{base}/"), 303)

    async def _logout(self, request: Request) -> Response:
        cookie = self._cookie_sent(request)
        await read_form(request, cookie)
        if cookie is not None:
            await self._identification.sessions.end(cookie)
        request.state.cookie = new_cookie()
        return RedirectResponse(self._of(request, Visitor("", ())).link("/login"), 303)

    # ── other answers ────────────────────────────────────────────────────────────────────────────

    async def _events(self, request: Request) -> Response:
        view = await self._view(request)
        if view is None:
            return self._to_login(request)

        async def again() -> Visitor | None:
            try:
                return await self._identification.visitor(request, self._cookie_sent(request))
            except NoRightsError:
                return None

        return self._streams.answer(request.method, view.visitor, again)

    async def _theme(self, request: Request) -> Response:
        form = await read_form(request, self._cookie_sent(request))
        view = self._of(request, Visitor("", ()))
        answer = RedirectResponse(local_path(form.get("back"), view.base, view.link("/")), 303)
        chosen = form.get("theme")
        if chosen in _THEMES:
            path = _cookie_path(request)
            answer.set_cookie("penstock-theme", chosen, max_age=31_536_000, path=path, samesite="lax")
        return answer

    async def _nothing(self, request: Request) -> Response:
        view = await self._view(request)
        if view is None:
            return self._to_login(request)
        return self._message(view, 404, "Not found", "There is no such page.")

    def _message(self, view: View, status: int, title: str, says: str, *, again: bool = False) -> Response:
        again = again and view.request.method == "GET"
        values = {"status": status, "heading": title, "says": says, "refresh": "never"}
        values["again"] = view.here() if again else ""
        return HTMLResponse(self._render("message.html", view, values), status)

    def _plain(
        self, request: Request, status: int, title: str, says: str, *, again: bool = False
    ) -> Response:
        """A message for somebody who may be unknown. `again`: with a link to the same page."""
        visitor = getattr(request.state, "visitor", Visitor("", ()))
        return self._message(self._of(request, visitor), status, title, says, again=again)

    def _away(self, request: Request, says: str) -> Response:
        """A page without its store, which the browser asks for again. Pages that were open before stay."""
        opened = request.method == "GET" and not any(name in request.headers for name in _OF_OPEN_PAGES)
        if not opened:
            return self._plain(request, 503, "The store does not answer", says)
        again = f"{says.rstrip('.')}. This page is loaded again every {_AGAIN} seconds until it does."
        answer = self._plain(request, 503, "The store does not answer", again, again=True)
        answer.headers["Refresh"] = str(_AGAIN)
        return answer

    def _render(self, template: str, view: View, values: dict[str, Any]) -> bytes:
        theme = view.request.cookies.get("penstock-theme")
        shared = {
            "page": None,
            "flash": None,
            "refresh": getattr(values.get("page"), "refresh", "never"),
            "navigation": [
                page
                for page in self._pages
                if page.navigation and view.may_somewhere(page.act) and view.offers(page.path)
            ],
            "theme": theme if theme in _THEMES else "system",
            "static": f"{view.base}/static/{self._assets.version}",
            "by_token": self._identification.by_token,
        }
        return self._templates.page(template, view, {**shared, **values})


def _settings(given: dict[str, Any]) -> DashboardSettings:
    try:
        return DashboardSettings(**given)
    except TypeError:
        known = sorted(DashboardSettings.__dataclass_fields__)
        unknown = ", ".join(sorted(set(given) - set(known)))
        raise ConfigError(f"Dashboard has no setting {unknown}; it has {', '.join(known)}") from None


def _cookie_path(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/") or "/"


def _flash_of(request: Request, name: str, cookie: str) -> tuple[str, str, str] | None:
    """What an act has said: its kind, the text, and the path of its undo.

    Other hosts of a domain can set cookies, so it needs the token of its session.
    """
    token, _, text = unquote(request.cookies.get(name, "")).partition("|")
    if not hmac.compare_digest(token.encode("utf-8", "replace"), text_token(cookie, text).encode()):
        return None
    kind, _, rest = text.partition("|")
    undo, bar, says = rest.partition("|")
    undo = local_path(undo, "", "") if undo else ""
    return (kind, says, undo) if bar and kind in ("done", "failed") else None
