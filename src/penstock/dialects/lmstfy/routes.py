"""Paths of the data API: which request goes where, and which are redirected or unknown."""

from __future__ import annotations

import enum
import functools
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

__all__ = ["Action", "Route", "find_route"]


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
    REDIRECT = enum.auto()


class Route(NamedTuple):
    """An action and the parts of its path. `queue` of a consume request is a list, of a redirect a path."""

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
    if found is None and len(parts) > 5 and not parts[-1] and _leaf(method, parts[:-1]) is not None:
        return Route(Action.REDIRECT, "", "/".join(parts[:-1]))
    return found


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
    return None if action is None else Route(action, namespace, queue, job_id)
