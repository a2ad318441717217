"""Logins by access token: a cookie names a record in the store, which ends by itself.

The record holds a hash of the cookie and names the token. Its rights are those that the token has now: a
revoked or expired token ends its sessions at once.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable

import msgspec

from penstock.stores.contract import Store
from penstock.web.access import AccessTokens
from penstock.web.access_tokens import AccessToken, digest_of
from penstock.web.dashboard.visitor import Visitor
from penstock.web.document_cache import DocumentCache

__all__ = ["Sessions", "form_token", "new_cookie", "text_token"]

_KIND = "dashboard-sessions"
#: The most logins of one token; the one that would end first makes room.
_MOST = 50
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
        self._stored = DocumentCache(store, _KIND, StoredSession, fresh=fresh, on_read=on_read)
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
        for _, name in own[: max(0, len(own) - _MOST + 1)]:
            await self._stored.remove(name)


def new_cookie() -> str:
    """A new value of the session cookie: 256 random bits."""
    return secrets.token_urlsafe(32)


def form_token(cookie: str) -> str:
    """The token that the forms of this session carry. Only who has the cookie can compute it."""
    return hashlib.sha256(b"form:" + cookie.encode()).hexdigest()[:40]


def text_token(cookie: str, text: str) -> str:
    """Proves that a text in another cookie is from a request of this session."""
    return hashlib.sha256(f"text:{cookie}:{text}".encode("utf-8", "replace")).hexdigest()[:40]


def _name(cookie: str) -> str:
    return digest_of(cookie)
