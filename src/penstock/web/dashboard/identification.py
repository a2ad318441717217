"""Finds out who sent a request: by a function of the host application, by session, or nobody is asked."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from starlette.requests import Request

from penstock.core.loopback import is_loopback
from penstock.stores.contract import Store
from penstock.web.access import AccessRefusedError, AccessTokens
from penstock.web.access_tokens import AccessToken, Right
from penstock.web.dashboard.sessions import Sessions
from penstock.web.dashboard.settings import DashboardSettings
from penstock.web.dashboard.visitor import EVERYBODY, Visitor
from penstock.web.hosts import host_of, is_address

__all__ = ["Identification", "Login", "NoRightsError"]

#: For this long (s) a revoked token or a logout at another server may still be valid here.
_FRESH = 1.0
#: Headers of a proxy: who sends them may be anybody, also where only this machine reaches the listener.
_OF_PROXIES = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port"),
    *("x-forwarded-server", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"),
)

#: A function of the host application: who sent this request, or None, which refuses it.
Login = Callable[[Request], Visitor | Awaitable[Visitor | None] | None]


class NoRightsError(Exception):
    """The host application knows this visitor, who may see nothing here: a login would not help."""


class Identification:
    """Knows the visitors of a dashboard."""

    def __init__(
        self, store: Store, settings: DashboardSettings, login: Login | None, on_read: Callable[[], None]
    ) -> None:
        self.tokens = AccessTokens(store, fresh=_FRESH, on_read=on_read)
        self.sessions = Sessions(
            store, self.tokens, length=settings.session_length, fresh=_FRESH, on_read=on_read
        )
        self._settings = settings
        self._login = login

    @property
    def by_token(self) -> bool:
        """Whether visitors log in here, with a token."""
        return self._login is None

    async def visitor(self, request: Request, cookie: str | None) -> Visitor | None:
        """The visitor of a request; None: the visitor has to log in. Raises NoRightsError."""
        found = await self._found(request, cookie)
        if found is None:
            return None
        if not found.may_somewhere(Right.READ):
            if self.by_token:
                return None
            raise NoRightsError
        return found.reading_only() if self._settings.read_only else found

    async def _found(self, request: Request, cookie: str | None) -> Visitor | None:
        if self._login is not None:
            answer = self._login(request)
            return await answer if inspect.isawaitable(answer) else answer
        if cookie is not None and (visitor := await self.sessions.visitor(cookie)) is not None:
            return visitor
        if await self._is_open(request):
            return EVERYBODY
        return None if cookie is None else await self.sessions.visitor(cookie, again=True)

    async def _is_open(self, request: Request) -> bool:
        """Whether nobody has to log in: the setting allows it, without a proxy, and there is no token."""
        return self._settings.open_to_all and not _was_forwarded(request) and not await self.tokens.all()

    async def token_of(self, secret: str) -> AccessToken | str:
        """The token with this secret if it may read; otherwise why it opens nothing."""
        try:
            token = await self.tokens.admitted(secret.strip(), (), (), now=await self.sessions.now())
        except AccessRefusedError as refused:
            return refused.reason
        if token is None:
            return "This token is not known here."
        if not any(scope.gives(Right.READ) for scope in token.scopes):
            return f"The token {token.name!r} has no right to read."
        return token


def _was_forwarded(request: Request) -> bool:
    """Whether a request seems to come through a proxy, from anywhere.

    Not all proxies add a header: nginx in its simplest form sends HTTP/1.0, which no browser does. What only
    copies bytes keeps the `Host`, so an address there is not that of the loopback listener that is reached.
    """
    if request.scope.get("http_version") == "1.0" or any(name in request.headers for name in _OF_PROXIES):
        return True
    server = request.scope.get("server")
    host = host_of(request.headers.get("host", ""))
    return server is not None and is_loopback(server[0]) and is_address(host) and not is_loopback(host)
