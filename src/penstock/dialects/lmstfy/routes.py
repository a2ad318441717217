"""Paths of the data API: which request goes where, and which are redirected or unknown."""

from __future__ import annotations

import enum
import functools
import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from penstock.dialects.lmstfy.bodies import error
from penstock.web.exchange import Exchange
from penstock.web.hosts import HostRule
from penstock.web.replies import TEXT, reply

__all__ = ["PATTERNS", "Action", "Route", "find_route", "moved", "turned_away"]

_LAST_SLASH = re.compile(rb"(?:/|%2[Ff])\Z")
_HALF_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Action(enum.Enum):
    """What a request asks for."""

    PUBLISH = enum.auto()
    BULK = enum.auto()
    REPUBLISH = enum.auto()
    CONSUME = enum.auto()
    PEEK = enum.auto()
    PEEK_JOB = enum.auto()
    ACK = enum.auto()
    SIZE = enum.auto()
    DESTROY = enum.auto()
    DEAD_HEAD = enum.auto()
    RESPAWN = enum.auto()
    DELETE_DEAD = enum.auto()
    DEAD_SIZE = enum.auto()
    TOUCH = enum.auto()
    RELEASE = enum.auto()
    BURY = enum.auto()
    DEAD_LIST = enum.auto()
    RESPAWN_JOB = enum.auto()
    DELETE_DEAD_JOB = enum.auto()
    REDIRECT = enum.auto()

    __hash__ = object.__hash__  # Enum's own is a Python function; several look-ups per request


_QUEUE_PATTERN = "/api/:namespace/:queue"
#: The paths of the actions, as lmstfy's metrics name them.
PATTERNS = {
    **dict.fromkeys((Action.PUBLISH, Action.CONSUME, Action.DESTROY), _QUEUE_PATTERN),
    **dict.fromkeys((Action.REPUBLISH, Action.PEEK_JOB, Action.ACK), f"{_QUEUE_PATTERN}/job/:job_id"),
    **dict.fromkeys((Action.DEAD_HEAD, Action.RESPAWN, Action.DELETE_DEAD), f"{_QUEUE_PATTERN}/deadletter"),
    Action.BULK: f"{_QUEUE_PATTERN}/bulk",
    Action.PEEK: f"{_QUEUE_PATTERN}/peek",
    Action.SIZE: f"{_QUEUE_PATTERN}/size",
    Action.DEAD_SIZE: f"{_QUEUE_PATTERN}/deadletter/size",
    Action.TOUCH: f"{_QUEUE_PATTERN}/job/:job_id/touch",
    Action.RELEASE: f"{_QUEUE_PATTERN}/job/:job_id/release",
    Action.BURY: f"{_QUEUE_PATTERN}/job/:job_id/bury",
    Action.DEAD_LIST: f"{_QUEUE_PATTERN}/deadletter/job",
    **dict.fromkeys((Action.RESPAWN_JOB, Action.DELETE_DEAD_JOB), f"{_QUEUE_PATTERN}/deadletter/job/:job_id"),
}


class Route(NamedTuple):
    """An action and the parts of its path. `queue` of a consume request is a list."""

    action: Action
    namespace: str
    queue: str
    job_id: str = ""


_QUEUE = {"PUT": Action.PUBLISH, "GET": Action.CONSUME, "DELETE": Action.DESTROY}
_BELOW = {
    ("PUT", "bulk"): Action.BULK,
    ("GET", "peek"): Action.PEEK,
    ("GET", "size"): Action.SIZE,
    ("GET", "deadletter"): Action.DEAD_HEAD,
    ("PUT", "deadletter"): Action.RESPAWN,
    ("DELETE", "deadletter"): Action.DELETE_DEAD,
}
_JOB = {"PUT": Action.REPUBLISH, "GET": Action.PEEK_JOB, "DELETE": Action.ACK}
# what lmstfy does not have
_LEASED = {"touch": Action.TOUCH, "release": Action.RELEASE, "bury": Action.BURY}
_DEAD_JOB = {"PUT": Action.RESPAWN_JOB, "DELETE": Action.DELETE_DEAD_JOB}


def turned_away(exchange: Exchange, hosts: HostRule) -> bool:
    """Answer a request that no route may see, of a wrong host or with a malformed path; whether it is one.

    A malformed path has a percent sign that begins no escape; Go's server ends its connection, too.
    """
    why = hosts.refusal(exchange)
    if why:
        exchange.answer(error(403, why))
        return True
    if b"%" in exchange.path and _HALF_ESCAPE.search(exchange.path) is not None:
        exchange.last = True
        exchange.answer(reply(400, b"400 Bad Request", TEXT))
        return True
    return False


def moved(exchange: Exchange) -> bytes:
    """The answer to a path with a slash too many, as Go's `http.Redirect` gives it.

    The new path stays escaped: an escaped line break would end the header.
    """
    where = _LAST_SLASH.sub(b"", exchange.path) + (b"?" + exchange.query if exchange.query else b"")
    location = b"Location: %b\r\n" % where
    if exchange.method != "GET":
        return reply(307, b"", b"", location)
    shown = where.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b">", b"&gt;")
    body = b'<a href="%b">Moved Permanently</a>.\n\n' % shown.replace(b'"', b"&#34;")
    return reply(301, body, b"text/html; charset=utf-8", location)


def find_route(method: str, path: bytes) -> Route | None:
    """The route of a request; None if lmstfy has none. Paths of queues are cached, those of jobs are not."""
    if b"/job/" in path:
        return _find(method, path)
    return _find_cached(method, path)


def _find(method: str, path: bytes) -> Route | None:
    decoded = unquote_to_bytes(path) if b"%" in path else path
    parts = decoded.decode("utf-8", "surrogateescape").split("/")
    if len(parts) < 4 or parts[0] or parts[1] != "api":
        return None
    found = _leaf(method, parts)
    if found is None and not parts[-1] and _is_redirected(method, parts):
        return Route(Action.REDIRECT, "", "")
    return found


def _is_redirected(method: str, parts: list[str]) -> bool:
    """Whether lmstfy's router redirects a path that ends with a slash to the same path without it."""
    if len(parts) == 4:
        return method in _QUEUE
    if parts[4:] == ["job", "", ""]:
        return method in _JOB
    return len(parts) > 5 and _leaf(method, parts[:-1]) is not None


_find_cached = functools.lru_cache(maxsize=4_096)(_find)


def _leaf(method: str, parts: list[str]) -> Route | None:
    """The route of the parts of a path, which begin with "" and "api"."""
    namespace, queue = parts[2], parts[3]
    action: Action | None = None
    job_id = ""
    match parts[4:]:
        case []:
            action = _QUEUE.get(method) if queue else None
        case [below]:
            action = _BELOW.get((method, below))
        case ["job", job_id] if job_id:
            action = _JOB.get(method)
        case ["deadletter", "size"] if method == "GET":
            action = Action.DEAD_SIZE
        case ["job", job_id, below] if job_id and method == "POST":
            action = _LEASED.get(below)
        case ["deadletter", "job"] if method == "GET":
            action = Action.DEAD_LIST
        case ["deadletter", "job", job_id] if job_id:
            action = _DEAD_JOB.get(method)
    return None if action is None else Route(action, namespace, queue, job_id)
