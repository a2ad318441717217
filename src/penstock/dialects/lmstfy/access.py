"""Who may send a request to the data API: a token of lmstfy, or a native token with the right to do it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.names import store_queue
from penstock.dialects.lmstfy.parameters import RefusedError, read_query
from penstock.dialects.lmstfy.routes import Action, Route
from penstock.dialects.lmstfy.tokens import Tokens, token_name
from penstock.web.access import AccessRefusedError
from penstock.web.access_tokens import AccessToken, Right, looks_native
from penstock.web.exchange import Exchange

__all__ = ["NEEDED_RIGHTS", "Caller", "bearer_token", "check_access", "given_token"]

_BEARER = "bearer "

#: The rights that a native token needs for an action, on each queue of the request.
NEEDED_RIGHTS = {
    Action.PUBLISH: (Right.PRODUCE,),
    Action.BULK: (Right.PRODUCE,),
    Action.REPUBLISH: (Right.PRODUCE, Right.CONSUME),
    Action.CONSUME: (Right.CONSUME,),
    Action.ACK: (Right.CONSUME,),
    Action.PEEK: (Right.READ,),
    Action.PEEK_JOB: (Right.READ,),
    Action.SIZE: (Right.READ,),
    Action.DEAD_HEAD: (Right.READ,),
    Action.DEAD_SIZE: (Right.READ,),
    Action.DESTROY: (Right.OPERATE,),
    Action.RESPAWN: (Right.OPERATE,),
    Action.DELETE_DEAD: (Right.OPERATE,),
    Action.TOUCH: (Right.CONSUME,),
    Action.RELEASE: (Right.CONSUME,),
    Action.BURY: (Right.CONSUME,),
    Action.DEAD_LIST: (Right.READ,),
    Action.RESPAWN_JOB: (Right.OPERATE,),
    Action.DELETE_DEAD_JOB: (Right.OPERATE,),
}


class Caller(NamedTuple):
    """Who sends a request. `token`: lmstfy's token, whose limits apply; "" for others."""

    name: str
    token: str = ""


#: Called with the caller, with the refusal, or with the error of a look-up.
OnCaller = Callable[[Caller | BaseException], None]


def given_token(exchange: Exchange) -> str:
    """The token of a request, with the prefix of its pool: of `X-Token`, of the query, or a bearer token."""
    given = exchange.header(b"x-token") or ""
    if not given.isascii():  # as a query has it
        given = given.encode("latin-1").decode("utf-8", "surrogateescape")
    given = given or read_query(exchange.query).get("token", "")
    return given or bearer_token(exchange)


def bearer_token(exchange: Exchange) -> str:
    """The token of the header `Authorization: Bearer TOKEN`; "" if there is none."""
    value = exchange.header(b"authorization") or ""
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else ""


def check_access(
    tokens: Tokens, route: Route, pool: str, backend: Backend, token: str, then: OnCaller
) -> None:
    """Call `then` with the caller who may send this request, at once if tokens were read a moment ago."""

    def known(valid: bool | BaseException) -> None:
        if valid is True:
            then(_caller(pool, route.namespace, token))
        else:
            then(RefusedError(401, "invalid token") if valid is False else valid)

    def decide(answer: AccessToken | BaseException | None) -> None:
        if isinstance(answer, AccessToken):
            then(Caller(f"token:{answer.name}"))
        elif isinstance(answer, AccessRefusedError):
            then(RefusedError(answer.status, answer.reason, answer.retry_after))
        elif answer is None:
            tokens.check(pool, route.namespace, token, known)
        else:
            then(answer)

    if looks_native(token):
        needs = NEEDED_RIGHTS[route.action]
        backend.access_tokens.decide(token, needs, _queues(route), backend.now, decide)
    else:
        tokens.check(pool, route.namespace, token, known)


@functools.lru_cache(maxsize=4_096)
def _caller(pool: str, namespace: str, token: str) -> Caller:
    return Caller(f"lmstfy:{token_name(pool, namespace, token)[:8]}", token)


def _queues(route: Route) -> tuple[str, ...]:
    names = route.queue.split(",") if route.action is Action.CONSUME else [route.queue]
    return tuple(dict.fromkeys(store_queue(route.namespace, name) for name in names if name))
