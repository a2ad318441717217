"""Identify visitors: failed logins, sessions and their cookies, CSRF tokens of forms, and the visitor of a
request."""

from __future__ import annotations

import hashlib
import inspect
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request

from penstock.core.security import is_loopback
from penstock.stores.contract import Capability, Store
from penstock.web.access import AccessRefusedError, AccessTokens
from penstock.web.access_tokens import AccessToken, Right, TokenScope, digest_of
from penstock.web.dashboard.settings import DashboardSettings
from penstock.web.document_cache import DocumentCache
from penstock.web.hosts import host_of, is_address

# ── visitors and their rights ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Visitor:
    """A person with rights on queues. `name` is written into the audit log."""

    name: str
    scopes: tuple[TokenScope, ...]

    @classmethod
    def of(cls, name: str, *scopes: str) -> Visitor:
        """A visitor with scopes as those of a token: `Visitor.of("ann", "operate:mail.*", "read")`."""
        return cls(f"user:{name}", tuple(TokenScope.of(text) for text in scopes))

    def may(self, right: Right, queue: str = "*") -> bool:
        """Whether the visitor has this right on this queue; `*` stands for all queues."""
        return any(scope.gives(right) and scope.covers(queue) for scope in self.scopes)

    def queues_of(self, right: Right) -> tuple[str, ...] | None:
        """The queues on which the visitor has this right, `*` for any characters; None: all queues."""
        if self.may(right):
            return None
        return tuple(name for scope in self.scopes if scope.gives(right) for name in scope.queues)

    def may_somewhere(self, right: Right) -> bool:
        """Whether the visitor has this right on any queue."""
        return any(scope.gives(right) for scope in self.scopes)

    def reading_only(self) -> Visitor:
        """The same visitor, who may read what they could read, and change nothing."""
        only = tuple(TokenScope((Right.READ,), s.queues) for s in self.scopes if s.gives(Right.READ))
        return replace(self, scopes=only)


#: The visitor of a dashboard that asks for no login.
EVERYBODY = Visitor("anonymous", (TokenScope((Right.ADMIN,)),))


_log = logging.getLogger("penstock.web")

#: The most wrong logins of one address in this time (s).
_MAX_FAILED_LOGINS, _LOGIN_WINDOW = 20, 60.0


# ── failed logins ────────────────────────────────────────────────────────────────────────────────

#: The addresses that are remembered.
_ADDRESSES = 1_000
_MAX_ADDRESS = 100


@dataclass
class _Count:
    since: float
    tries: int = 0


class LoginTries:
    """The wrong logins of the last minute.

    A right token is accepted all the same. Nobody finds one by guessing, and behind a proxy that is not told
    apart, one visitor would lock out all others.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def too_many(self, address: str) -> bool:
        """Count a wrong login, and say whether there were too many."""
        now = time.monotonic()
        address = address[:_MAX_ADDRESS]  # of a proxy's header, it may be any text
        count = self._counts.pop(address, None)
        if count is None or now - count.since > _LOGIN_WINDOW:
            count = _Count(now)
        count.tries += 1
        self._counts[address] = count
        if len(self._counts) > _ADDRESSES:
            self._counts.popitem(last=False)
        if count.tries == _MAX_FAILED_LOGINS + 1:
            _log.warning(
                "more than %d wrong logins from %s in a minute", _MAX_FAILED_LOGINS, address or "a socket"
            )
        return count.tries > _MAX_FAILED_LOGINS


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────

_SESSION_DOCUMENTS = "dashboard-sessions"
#: The most logins of one token; the one that would end first makes room.
_MAX_SESSIONS_PER_TOKEN = 50
#: For this long (s) the store's clock is counted on without asking for it.
_CLOCK_FRESH = 30.0


class StoredSession(msgspec.Struct, frozen=True):
    """A login: the token by name and hash, and its end by the store's clock (ms)."""

    token: str
    digest: str
    ends_at: int


class Sessions:
    """The logins of one store, shared by all its dashboards."""

    def __init__(
        self,
        store: Store,
        tokens: AccessTokens,
        *,
        length: float,
        fresh: float,
        on_read: Callable[[], None],
    ) -> None:
        self._tokens = tokens
        self._length = int(length * 1000)
        self._stored = DocumentCache(store, _SESSION_DOCUMENTS, StoredSession, fresh=fresh, on_read=on_read)
        self._on_read = on_read
        self._clock: tuple[int, float] | None = None

    async def begin(self, cookie: str, token: AccessToken) -> None:
        """Log in: the cookie stands for the token until the session ends."""
        ends_at = await self.now() + self._length
        record = StoredSession(token.name, token.digest, ends_at)
        await self._make_room(token)
        await self._stored.put(_name(cookie), record, expires_in=self._length)

    async def end(self, cookie: str) -> None:
        """Log out."""
        await self._stored.remove(_name(cookie))

    async def visitor(self, cookie: str, *, again: bool = False) -> Visitor | None:
        """Who this cookie stands for; None if its session or token has ended.

        `again`: ask the store anew, because another dashboard may have begun the session a moment ago.
        """
        sessions = await (self._stored.again() if again else self._stored.all())
        session = sessions.get(_name(cookie))
        if session is None:
            return None
        now = await self.now()
        for token in await self._tokens.all():
            if token.name == session.token and token.digest == session.digest:
                ended = token.expired(now) or session.ends_at <= now
                return None if ended else Visitor(f"token:{token.name}", token.scopes)
        return None

    async def now(self) -> int:
        """The store's clock (ms)."""
        at = time.monotonic()
        if self._clock is None or at - self._clock[1] > _CLOCK_FRESH:
            self._on_read()
            self._clock = await self._tokens.now(), at
        return self._clock[0] + int((at - self._clock[1]) * 1000)

    async def _make_room(self, token: AccessToken) -> None:
        """Without a bound, one token could fill the store with its logins."""
        stored = await self._stored.all()
        own = sorted((one.ends_at, name) for name, one in stored.items() if one.digest == token.digest)
        for _, name in own[: max(0, len(own) - _MAX_SESSIONS_PER_TOKEN + 1)]:
            await self._stored.remove(name)


# ── cookies and tokens ───────────────────────────────────────────────────────────────────────────


def new_cookie() -> str:
    """A new value of the session cookie: 256 random bits."""
    return secrets.token_urlsafe(32)


def form_token(cookie: str) -> str:
    """Return the CSRF token of this session's forms.

    It is derived from the session cookie, which other sites cannot read.
    """
    return hashlib.sha256(b"form:" + cookie.encode()).hexdigest()[:40]


def text_token(cookie: str, text: str) -> str:
    """Return the token by which a message in a cookie is known to come from this session."""
    return hashlib.sha256(f"text:{cookie}:{text}".encode("utf-8", "replace")).hexdigest()[:40]


def _name(cookie: str) -> str:
    return digest_of(cookie)


# ── the visitor of a request ─────────────────────────────────────────────────────────────────────

#: For this long (s) a revoked token or a logout at another server may still be valid here.
_SESSION_CACHE = 1.0
#: Headers of a proxy: who sends them may be anybody, also where only this machine reaches the listener.
_PROXY_HEADERS = (
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
        self.tokens = AccessTokens(store, fresh=_SESSION_CACHE, on_read=on_read)
        self.sessions = Sessions(
            store, self.tokens, length=settings.session_length, fresh=_SESSION_CACHE, on_read=on_read
        )
        self._store = store
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
        if not self._store.can(Capability.DOCUMENTS):
            return f"This store cannot {Capability.DOCUMENTS.value}, and so has no access tokens."
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
    if request.scope.get("http_version") == "1.0" or any(name in request.headers for name in _PROXY_HEADERS):
        return True
    server = request.scope.get("server")
    host = host_of(request.headers.get("host", ""))
    return server is not None and is_loopback(server[0]) and is_address(host) and not is_loopback(host)
