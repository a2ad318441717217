"""The admin API of lmstfy: tokens and their limits, the pools, the queues, the version, operations."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from penstock.core.errors import PenstockError
from penstock.dialects.lmstfy import requests
from penstock.dialects.lmstfy.access import Tokens, bearer_token, read_token, token_name
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.limits import (
    TokenLimits,
    limiter_put,
    limiter_removed,
    limiter_shown,
    limiters_listed,
)
from penstock.dialects.lmstfy.migration import MigratingBackend
from penstock.dialects.lmstfy.names import DEFAULT_POOL, MOST_NAME, byte_length, is_name, split_queue
from penstock.web.access import AccessRefusedError
from penstock.web.access_log import AccessLog, AccessLogSwitch
from penstock.web.access_tokens import Right
from penstock.web.debug import DebugRoutes, comes_from_here
from penstock.web.exchange import Exchange
from penstock.web.exposition import EXPOSITION
from penstock.web.hosts import HostRule
from penstock.web.process_link import Act, Siblings
from penstock.web.replies import TEXT

#: Reads settings and certificates again; returns what needs a restart. Raises PenstockError.
Reload = Callable[[], Awaitable[list[str]]]

_SWITCH = {"enable": True, "disable": False}


class Operations:
    """The routes of operators. `siblings` are all processes of this server.

    `counted`: the text of the metrics that this process counts itself.
    """

    def __init__(self, access_logs: Sequence[AccessLog], counted: Callable[[], str]) -> None:
        self.access_log = AccessLogSwitch(access_logs)
        self._counted = counted
        self.reload: Reload = _nothing
        self.siblings = Siblings(self.acts)

    @property
    def acts(self) -> dict[str, Act]:
        """What one process does when a request at another one asks for it."""
        return {"reload": self._reload, "access_log": self._switch, "counted": self._count}

    def adopt(self, kept: Any) -> None:
        """Use what operators have changed in processes of this server that started earlier; None: nothing."""
        if kept is not None:
            self.access_log.adopt(kept)

    async def counted_by_others(self) -> list[str]:
        """The metrics that the other processes count."""
        answers: list[tuple[int, str]] = await self.siblings.ask_all("counted")
        return [text for pid, text in answers if pid != os.getpid()]

    async def access_log_shown(self) -> bytes:
        """Whether requests are logged."""
        return _status(self.access_log.enabled)

    async def access_log_switched(self, status: str) -> bytes:
        """Switch the access log of all processes, until their end. 503: one of them does not answer."""
        enabled = _SWITCH.get(status)
        if enabled is None:
            raise requests.RefusedError(400, "invalid status")
        try:
            await self.siblings.ask_all("access_log", enabled)
        except PenstockError as wrong:
            return requests.error(503, str(wrong))
        return _status(enabled)

    async def reloaded(self) -> bytes:
        """Reload settings and certificates in all processes. 400: they are wrong, and the old ones stay."""
        try:
            notes = await self.siblings.ask_all("reload")
        except PenstockError as wrong:
            return requests.error(400, str(wrong))
        said = list(dict.fromkeys(note for some in notes for note in some))
        return requests.plain_reply(200, requests.json_text({"notes": said, "status": "reloaded"}))

    async def _count(self, _: Any) -> tuple[int, str]:
        return os.getpid(), self._counted()

    async def _reload(self, _: Any) -> list[str]:
        notes = await self.reload()
        await self.siblings.keep(self.access_log.state)
        return notes

    async def _switch(self, enabled: Any) -> None:
        self.access_log.switch(bool(enabled))
        await self.siblings.keep(self.access_log.state)


def _status(enabled: bool) -> bytes:
    return requests.plain_reply(200, requests.json_text({"status": "enabled" if enabled else "disabled"}))


async def _nothing() -> list[str]:
    return []


_log = logging.getLogger("penstock.lmstfy")

#: In bytes.
_SHORTEST_TOKEN = 20
_MOST_FORM = 64 * 1024
_PROFILE_SECONDS = 30
_FORM = "application/x-www-form-urlencoded"
_TOKEN = re.compile(rb"(/token/[^/]*/)[^/]+")
_UNKNOWN = {"build_commit": "unknown", "build_date": "unknown", "version": "unknown"}


class _AdminRoute(NamedTuple):
    """What a request does. `guarded`: only for administrators; `entry`: act and object for the audit log."""

    act: Callable[[], Coroutine[Any, Any, bytes]]
    guarded: bool = False
    entry: tuple[str, str] | None = None


class AdminApi:
    """Handles the requests of the admin listener.

    - `metrics`: makes the text of the metrics.
    - `operations`: the routes of operators.
    - `accounts`: name → password, for the routes of tokens; or a native token with the right `admin`.
    - `need_admin`: these routes need such a token also if there are no accounts.
    - `public_info=False`: `/info`, `/pools` and `/migrations` need what the routes of tokens need.
    """

    def __init__(
        self,
        pools: Mapping[str, Backend],
        tokens: Tokens,
        limits: TokenLimits,
        *,
        metrics: Callable[[], Awaitable[str]],
        hosts: HostRule,
        operations: Operations,
        accounts: Mapping[str, str] | None = None,
        need_admin: bool = False,
        public_info: bool = True,
    ) -> None:
        self._audit_log = pools[DEFAULT_POOL].audit_log
        self._need_admin = need_admin
        self._public_info = public_info
        self._pools = pools
        self._tokens = tokens
        self._limits = limits
        self._metrics = metrics
        self._hosts = hosts
        self._operations = operations
        self._profiles = DebugRoutes()
        self.accounts = dict(accounts or {})
        self._answers = requests.PendingAnswers(_failed)

    def body_limit(self, exchange: Exchange) -> int:
        """The largest body of a request: that of a form."""
        return _MOST_FORM if exchange.method in ("POST", "PUT") else 0

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        if requests.refused_early(exchange, self._hosts):
            return
        path = unquote_to_bytes(exchange.path).decode("utf-8", "surrogateescape")
        parts = path.split("/")[1:]
        found = self._route(exchange, parts)
        if found is None and not parts[-1] and self._is_moved(exchange, parts[:-1]):
            exchange.answer(requests.moved(exchange))
            return
        if found is None:
            exchange.answer(requests.plain_reply(404, b"404 page not found", b"text/plain"))
            return
        self._answers.make(exchange, self._guarded(exchange, found) if found.guarded else found.act())

    def _is_moved(self, exchange: Exchange, parts: list[str]) -> bool:
        """Whether lmstfy's router redirects to this path, also to the one of a namespace without a name."""
        nameless = parts == ["token", ""] and exchange.method in ("GET", "POST")
        return nameless or self._route(exchange, parts) is not None

    def _route(self, exchange: Exchange, parts: list[str]) -> _AdminRoute | None:
        """The route of a request; None if lmstfy has no such route."""
        given = requests.read_query(exchange.query)
        private = not self._public_info
        match exchange.method, parts:
            case "GET", ["version"]:
                return _AdminRoute(lambda: _done(requests.indented(200, _UNKNOWN)))
            case "GET", ["pools"]:
                return _AdminRoute(lambda: _done(requests.indented(200, list(self._pools))), guarded=private)
            case "GET", ["migrations"]:
                return _AdminRoute(self._migrations, guarded=private)
            case "GET", ["info"]:
                return _AdminRoute(lambda: self._info(given.get("pool") or DEFAULT_POOL), guarded=private)
            case "GET", ["metrics"]:
                return _AdminRoute(self._shown_metrics)
            case "GET", ["livez"]:
                return _AdminRoute(lambda: _done(requests.plain_reply(200, b"ok\n", TEXT)))
            case "GET", ["readyz"]:
                return _AdminRoute(self._ready)
            case "GET", ["accesslog"]:
                return _AdminRoute(self._operations.access_log_shown)
            case "POST", ["accesslog"]:
                status = given.get("status", "")
                switch = partial(self._operations.access_log_switched, status)
                return _AdminRoute(switch, guarded=True, entry=("server.accesslog", status))
            case "POST", ["reload"]:
                return _AdminRoute(self._operations.reloaded, guarded=True, entry=("server.reload", ""))
            case _, ["debug", "pprof", *names]:
                return self._debug(exchange, "/".join(names), given)
            case "GET", ["limits"]:
                return _AdminRoute(lambda: limiters_listed(self._limits), guarded=True)
            case "POST", ["token", namespace] if namespace:
                create = partial(self._create, namespace, given, _form(exchange))
                return _AdminRoute(create, guarded=True, entry=("lmstfy.token.create", namespace))
            case "GET", ["token", namespace] if namespace:
                return _AdminRoute(lambda: self._list(namespace, given.get("pool", "")), guarded=True)
            case "DELETE", ["token", namespace, token] if token:
                entry = ("lmstfy.token.delete", _shown_token(namespace, token))
                return _AdminRoute(lambda: self._delete(namespace, token), guarded=True, entry=entry)
            case _, ["token", namespace, token, "limit"] if token:
                return self._limiter(exchange, namespace, token)
        return None

    def _debug(self, exchange: Exchange, name: str, given: Mapping[str, str]) -> _AdminRoute | None:
        """A profile, for administrators on the same machine; None for those on another one."""
        if not comes_from_here(exchange):
            return None
        if not name:
            return _AdminRoute(
                lambda: _done(requests.plain_reply(200, self._profiles.index().encode(), TEXT)), guarded=True
            )
        profile = self._profiles.profiles.get(name)
        if profile is None:
            return None

        async def shown() -> bytes:
            seconds = requests.number(dict(given), "seconds", _PROFILE_SECONDS)
            return requests.plain_reply(200, (await profile(seconds)).encode("utf-8", "replace"), TEXT)

        return _AdminRoute(shown, guarded=True)

    def _limiter(self, exchange: Exchange, namespace: str, token: str) -> _AdminRoute | None:
        limits, to = self._limits, _shown_token(namespace, token)
        match exchange.method:
            case "GET":
                return _AdminRoute(lambda: limiter_shown(limits, namespace, token), guarded=True)
            case "POST" | "PUT":
                put = partial(limiter_put, limits, namespace, token, exchange, new=exchange.method == "POST")
                return _AdminRoute(put, guarded=True, entry=("lmstfy.limit.set", to))
            case "DELETE":
                remove = partial(limiter_removed, limits, namespace, token)
                return _AdminRoute(remove, guarded=True, entry=("lmstfy.limit.remove", to))
        return None

    async def _guarded(self, exchange: Exchange, route: _AdminRoute) -> bytes:
        """The answer of a route for administrators; its act gets an entry in the audit log."""
        caller = await self._caller(exchange)
        if caller is None:
            realm = b'WWW-Authenticate: Basic realm="Authorization Required"\r\n'
            return requests.plain_reply(401, b"", b"").replace(b"\r\n\r\n", b"\r\n" + realm + b"\r\n", 1)
        exchange.caller = caller
        if route.entry is None:
            return await route.act()
        act, to = route.entry
        write = partial(self._audit_log.write, caller, act, to, address=exchange.address)
        return await requests.audited(route.act(), write)

    async def _caller(self, exchange: Exchange) -> str | None:
        """The name of the caller: an account, or a native token with the right; None if it has neither."""
        if not self.accounts and not self._need_admin:
            return "anonymous"
        account = self._account(exchange.header(b"authorization"))
        if account is not None:
            return f"account:{account}"
        given = exchange.header(b"x-token") or bearer_token(exchange)
        try:
            token = await self._pools[DEFAULT_POOL].access_tokens.admitted(given, [Right.ADMIN], ["*"])
        except AccessRefusedError as refusal:
            raise requests.RefusedError(refusal.status, refusal.reason, refusal.retry_after) from None
        return None if token is None else f"token:{token.name}"

    def _account(self, authorization: str | None) -> str | None:
        """The name of the account whose password is given."""
        scheme, _, encoded = (authorization or "").partition(" ")
        try:
            name, _, password = b64decode(encoded, validate=True).partition(b":")
        except (BadBase64, ValueError):
            return None
        matches = [
            one
            for one, secret in self.accounts.items()
            if hmac.compare_digest(one.encode(), name) & hmac.compare_digest(secret.encode(), password)
        ]
        return matches[0] if scheme.lower() == "basic" and matches else None

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────

    async def _create(self, namespace: str, given: Mapping[str, str], form: Mapping[str, str]) -> bytes:
        description = form.get("description") or given.get("description", "")
        token = form.get("token") or given.get("token", "")
        if not requests.checked_text(description, "description"):
            raise requests.RefusedError(400, "invalid description")
        if token and byte_length(token) < _SHORTEST_TOKEN:
            raise requests.RefusedError(400, "the user token was too short")
        if byte_length(namespace) > MOST_NAME:
            raise requests.RefusedError(400, "the namespace name was too long")
        if not is_name(namespace):
            raise requests.RefusedError(400, "namespace name contains forbidden characters")
        pool = given.get("pool", "")
        if token.count(":") == 1:
            pool, _, token = token.partition(":")
        named = pool or DEFAULT_POOL
        if named not in self._pools:
            raise requests.RefusedError(400, "the pool was not exists")
        made = await self._tokens.create(named, namespace, description, requests.checked_text(token, "token"))
        if made is None:
            raise requests.RefusedError(400, "the token has already existed")
        return requests.indented(201, {"token": made if named == DEFAULT_POOL else f"{named}:{made}"})

    async def _list(self, namespace: str, pool: str) -> bytes:
        named = pool or DEFAULT_POOL
        if named not in self._pools:
            raise requests.RefusedError(400, "the pool was not exists")
        prefix = f"{pool}:" if pool else ""
        known = await self._tokens.all(named, namespace)
        return requests.indented(200, {"tokens": {prefix + one.token: one.description for one in known}})

    async def _delete(self, namespace: str, text: str) -> bytes:
        pool, token = read_token(text)
        if pool not in self._pools:
            raise requests.RefusedError(400, "the pool was not exists")
        await self._tokens.delete(pool, namespace, token)
        await self._limits.remove(pool, namespace, token)
        return requests.removed()

    # ── queues ───────────────────────────────────────────────────────────────────────────────────

    async def _migrations(self) -> bytes:
        """What is left in pools that are drained, by pool."""
        found = {
            name: await backend.progress()
            for name, backend in self._pools.items()
            if isinstance(backend, MigratingBackend)
        }
        return requests.indented(200, found)

    async def _shown_metrics(self) -> bytes:
        return requests.plain_reply(200, (await self._metrics()).encode(), EXPOSITION)

    async def _ready(self) -> bytes:
        """200 if the stores of all pools answer, else 503 with the reasons."""
        answers = await asyncio.gather(*(backend.answers() for backend in self._pools.values()))
        wrong = [f"{pool}: {why}" for pool, why in zip(self._pools, answers, strict=True) if why]
        if wrong:
            return requests.plain_reply(503, "\n".join([*wrong, ""]).encode("utf-8", "replace"), TEXT)
        return requests.plain_reply(200, b"ok\n", TEXT)

    async def _info(self, pool: str) -> bytes:
        backend = self._pools.get(pool)
        if backend is None:
            return requests.plain_reply(200, b"", b"")
        found: dict[str, list[str]] = {}
        for info in await backend.store.queues():
            names = split_queue(info.name)
            if names is not None:
                found.setdefault(names[0], []).append(names[1])
        return requests.indented(200, found, TEXT, b"\n")


def _failed(exchange: Exchange, failure: Exception) -> None:
    _log.error("admin %s: %s", exchange.method, failure)  # not the path: it may have a token
    exchange.answer(requests.error(500, "internal error"))


def shown_path(exchange: Exchange) -> bytes:
    """The path of a request for a log: without its token."""
    return _TOKEN.sub(rb"\1***", exchange.path)


def _shown_token(namespace: str, text: str) -> str:
    """A token of lmstfy as the audit log shows it: the begin of its hash."""
    pool, token = read_token(text)
    return f"{namespace} lmstfy:{token_name(pool, namespace, token)[:8]}"


async def _done(answer: bytes) -> bytes:
    return answer


def _form(exchange: Exchange) -> Mapping[str, str]:
    kind = (exchange.header(b"content-type") or "").partition(";")[0].strip().lower()
    return requests.read_query(exchange.body) if kind == _FORM else {}
