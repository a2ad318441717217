"""Security headers of every response, and the checks of a request's host and origin (DNS rebinding, CSRF).

Three guards keep other sites from sending forms in a visitor's name (CSRF): a request from another site is
refused (`is_cross_site`), every form has a CSRF token (`identification.form_token`, checked by
`forms.read_form`), and cookies are SameSite=Lax (`dashboard.py`)."""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.web.hosts import HostRule

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    # not no-referrer: browsers would then send `Origin: null` with our own forms
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_METHODS = frozenset({"GET", "HEAD", "POST"})
#: The longest path and query (bytes): 50 selected jobs with the longest names fit. Links repeat the query.
_LONGEST_PATH, _LONGEST_QUERY = 2_000, 32_000


class Guard:
    """Refuses requests of unknown hosts and methods, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: HostRule) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(raw=message.setdefault("headers", [])))
            await send(message)

        refusal = self._refusal(scope)
        answer = self._app if refusal is None else refusal
        await answer(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) > 1:
            return PlainTextResponse("more than one Host header\n", 400)
        if not self._hosts.accepts(headers.get("host"), None):
            return PlainTextResponse("host not allowed: name it with --allowed-host\n", 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("method not allowed\n", 405, {"Allow": "GET, HEAD, POST"})
        if len(scope["query_string"]) > _LONGEST_QUERY or len(scope["path"]) > _LONGEST_PATH:
            return PlainTextResponse("this address is too long\n", 414)
        if _CONTROL.search(scope["path"]):  # a route would match also with a line feed at its end
            return PlainTextResponse("control characters in the path\n", 400)
        if scope["method"] == "POST" and is_cross_site(headers, self._hosts):
            return PlainTextResponse("request from another site\n", 403)
        return None


def is_cross_site(headers: Headers, hosts: HostRule) -> bool:
    """Return True if a browser sent this request from another site (CSRF).

    Browsers that do not send `Sec-Fetch-Site` send `Origin` with a form.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    return not hosts.accepts(headers.get("host"), headers.get("origin"))


def _add_headers(headers: MutableHeaders) -> None:
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
