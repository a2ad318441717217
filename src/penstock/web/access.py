"""Decides whether an access token may do what a request asks for; the tokens are documents of the store."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.core.errors import ConfigError
from penstock.core.limits import Rate
from penstock.stores.contract import QuotaRequest, QuotaTaken, Store
from penstock.web.access_tokens import (
    AccessToken,
    Right,
    TokenScope,
    check_scopes,
    check_token_name,
    digest_of,
    looks_native,
    new_secret,
)
from penstock.web.document_cache import DocumentCache
from penstock.web.group_commit import GroupCommit

#: The kind of their documents.
_KIND = "tokens"
#: An expired token stays in the list for this long (ms), so that its requests are refused with the reason.
_SHOWN_EXPIRED = 30 * 86_400_000


class AccessRefusedError(Exception):
    """A request that its token does not allow: a status of HTTP, the reason, and when to try again (s)."""

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


#: Called with the token that allows the request, with None if no such token is known, with a refusal, or with
#: the error of the store.
OnDecided = Callable[[AccessToken | BaseException | None], None]


class AccessTokens:
    """The access tokens of one store. Changes made elsewhere are seen within `fresh` seconds.

    `on_read` is called when the store is asked for changes.
    """

    def __init__(
        self, store: Store, *, fresh: float = 0.1, on_read: Callable[[], None] | None = None
    ) -> None:
        self._store = store
        self._stored = DocumentCache(store, _KIND, AccessToken, fresh=fresh, on_read=on_read)
        self._quotas: GroupCommit[QuotaRequest, QuotaTaken] = GroupCommit(self._take_all)
        self._indexed: Mapping[str, AccessToken] = {}
        self._by_digest: dict[str, AccessToken] = {}

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def decide(
        self, secret: str, needs: Collection[Right], queues: Collection[str], now: int, then: OnDecided
    ) -> None:
        """Call `then` with the token of a request that needs these rights on these queues, or a refusal.

        At once if the token was read a moment ago and has no rate. `now`: the store's clock.
        """
        if not looks_native(secret):
            then(None)
            return
        digest = digest_of(secret)

        def decide(known: Mapping[str, AccessToken] | BaseException) -> None:
            if isinstance(known, BaseException):
                then(known)
                return
            token = self._find(known, digest)
            refusal = None if token is None else _refusal(token, needs, queues, now)
            if token is None or refusal is not None:
                then(refusal)
            elif token.rate is None:
                then(token)
            else:
                self._take(token, token.rate, then)

        self._ask(digest, decide)

    def prove(self, secret: str, now: int, then: Callable[[str | None], None]) -> None:
        """Call `then` with the name of a valid token, whatever it allows; with None for another text."""
        digest = digest_of(secret)

        def decide(known: Mapping[str, AccessToken] | BaseException) -> None:
            token = None if isinstance(known, BaseException) else self._find(known, digest)
            then(None if token is None or token.expired(now) else f"token:{token.name}")

        self._ask(digest, decide)

    def _ask(self, digest: str, then: Callable[[Mapping[str, AccessToken] | BaseException], None]) -> None:
        """Call `then` with the tokens: of another look at the store if none of them has this hash."""
        self._stored.ask(then, missed=self._find(self._stored.known, digest) is None)

    async def admitted(
        self, secret: str, needs: Collection[Right], queues: Collection[str], *, now: int | None = None
    ) -> AccessToken | None:
        """The token of a request, as `decide`; raises AccessRefusedError. `now`: else it is asked for."""
        decided: asyncio.Future[AccessToken | BaseException | None] = (
            asyncio.get_running_loop().create_future()
        )

        def take(answer: AccessToken | BaseException | None) -> None:
            if not decided.done():
                decided.set_result(answer)

        self.decide(secret, needs, queues, await self.now() if now is None else now, take)
        answer = await decided
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _find(self, known: Mapping[str, AccessToken], digest: str) -> AccessToken | None:
        """The token with this hash. The time of a look-up by the hash shows nothing about the token."""
        if known is not self._indexed:
            self._by_digest = {token.digest: token for token in known.values()}
            self._indexed = known
        found = self._by_digest.get(digest)
        return found if found is not None and hmac.compare_digest(found.digest, digest) else None

    def _take(self, token: AccessToken, rate: Rate, then: OnDecided) -> None:
        """Count a request of a token with a rate."""

        def taken(answer: QuotaTaken | BaseException) -> None:
            if isinstance(answer, BaseException):
                then(answer)
            elif answer.taken:
                then(token)
            else:
                seconds = max(1, math.ceil(answer.resets_in / 1_000))
                reason = f"the token {token.name!r} has reached its rate of {rate}"
                then(AccessRefusedError(429, reason, seconds))

        # by the hash: a new token of an old name begins anew
        request = QuotaRequest(f"token:{token.digest}", 1, int(rate.count), rate.per_ms)
        self._quotas.put(request, taken)

    async def _take_all(self, requests: list[QuotaRequest]) -> list[QuotaTaken]:
        return await self._store.take_quota(requests)

    # ── operators ────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        name: str,
        scopes: Sequence[TokenScope],
        *,
        expires_in: int | None = None,
        rate: Rate | None = None,
        description: str = "",
    ) -> tuple[AccessToken, str]:
        """Store a new token, and return it with its secret, which cannot be shown again.

        `expires_in` in ms. Raises ConfigError if the name is taken or something is not valid.
        """
        secret, now = new_secret(), await self.now()
        token = AccessToken(
            check_token_name(name),
            digest_of(secret),
            check_scopes(scopes),
            now,
            None if expires_in is None else now + expires_in,
            rate,
            description[:500],
        )
        shown_for = None if expires_in is None else expires_in + _SHOWN_EXPIRED
        if not await self._stored.put(name, token, new=True, expires_in=shown_for):
            raise ConfigError(f"there is a token {name!r} already: revoke it first, or choose another name")
        return token, secret

    async def revoke(self, name: str) -> bool:
        """Remove a token; False if there is none of this name. All servers refuse it within 100 ms."""
        found = name in await self._stored.all()
        if found:
            await self._stored.remove(name)
        return found

    async def all(self) -> list[AccessToken]:
        """All tokens by name, also those that have expired within the last 30 days."""
        known = await self._stored.all()
        return [known[name] for name in sorted(known)]

    async def now(self) -> int:
        """The store's clock (ms)."""
        return await self._store.now()


def _refusal(
    token: AccessToken, needs: Collection[Right], queues: Collection[str], now: int
) -> AccessRefusedError | None:
    if token.expired(now):
        return AccessRefusedError(401, f"the token {token.name!r} has expired")
    for right in needs:
        if not token.allows(right, queues):
            where = "" if "*" in queues else f" on {', '.join(queues)}"
            return AccessRefusedError(403, f"the token {token.name!r} has no right to {right}{where}"[:500])
    return None
