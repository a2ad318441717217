"""How a request is read, and how an answer is written, byte for byte as lmstfy does.

An answer is compact JSON in alphabetical order, escaped as Go escapes it. Parameters and numbers are read as
Go's `strconv` reads them; of a repeated name the first value counts.
"""

from __future__ import annotations

import asyncio
import enum
import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from penstock.core.security import Right
from penstock.dialects.lmstfy.names import request_ids
from penstock.web.exchange import Exchange
from penstock.web.hosts import HostRule
from penstock.web.replies import JSON, TEXT, reply, status_of
from penstock.web.text_cache import TextCache

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def json_text(value: Any, *, indent: int | None = None, sort: bool = True) -> bytes:
    """A value as Go's `encoding/json` writes it."""
    separators = (",", ": ") if indent else (",", ":")
    written = json.dumps(value, ensure_ascii=False, separators=separators, indent=indent, sort_keys=sort)
    return written.translate(_ESCAPES).encode("utf-8", "replace")


def text(value: str) -> bytes:
    """A string as Go writes it in JSON."""
    if value.isascii() and value.isalnum():
        return b'"%b"' % value.encode()
    return json_text(value)


def plain_reply(status: int, body: bytes, kind: bytes = JSON) -> bytes:
    """An answer with lmstfy's request id."""
    return reply(status, body, kind, b"X-Request-Id: %b\r\n" % request_ids.next().encode())


def answer(status: int, **fields: Any) -> bytes:
    """An answer with a JSON object."""
    return plain_reply(status, json_text(fields))


def indented(status: int, value: Any, kind: bytes = JSON, end: bytes = b"") -> bytes:
    """An answer with a JSON document over several lines."""
    return plain_reply(status, json_text(value, indent=4) + end, kind)


def error(status: int, why: str, retry_after: int | None = None) -> bytes:
    """An answer `{"error": …}`, with the header `Retry-After` (s) if it is given."""
    found = answer(status, error=why)
    if retry_after is None:
        return found
    return found.replace(b"\r\n\r\n", b"\r\nRetry-After: %d\r\n\r\n" % retry_after, 1)


def removed() -> bytes:
    """The answer 204, which has no body."""
    return plain_reply(204, b"")


def no_job() -> bytes:
    """The answer of a consume request that found no job."""
    return plain_reply(404, b'{"msg":"no job available"}')


# ── parameters ───────────────────────────────────────────────────────────────────────────────────


_UNSIGNED = re.compile(r"[0-9]+")
_SIGNED = re.compile(r"[+-]?[0-9]+")
#: No number of more digits fits 64 bits, except with leading zeros, which Go accepts.
_MOST_DIGITS = 4_000


#: The parameters of a query or a form by name.
Parameters = dict[str, str]


class RefusedError(Exception):
    """A request that is answered with an error: its status, the text, and when to try again (s)."""

    def __init__(self, status: int, error: str, retry_after: int | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.retry_after = retry_after

    def answer(self) -> bytes:
        """The answer to the request."""
        return error(self.status, self.error, self.retry_after)


def read_query(query: bytes) -> Parameters:
    """The parameters of a query, the first value of each. Do not change the result: it is cached.

    A pair that is not valid percent-encoding, or that has a semicolon, is left out, as by Go.
    """
    return _queries[query]


def _parameters_of(query: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in query.split(b"&"):
        if not pair or b";" in pair:
            continue
        name, _, value = pair.partition(b"=")
        decoded_name, decoded = _unescaped(name), _unescaped(value)
        if decoded_name is not None and decoded is not None:
            found.setdefault(decoded_name, decoded)
    return found


_queries = TextCache(_parameters_of, entries=1_024)


def _unescaped(text: bytes) -> str | None:
    text = text.replace(b"+", b" ")
    if b"%" in text:
        if re.search(rb"%(?![0-9A-Fa-f]{2})", text):
            return None
        text = unquote_to_bytes(text)
    return text.decode("utf-8", "surrogateescape")


def checked_text(text: str, name: str) -> str:
    """A text that was sent; raises RefusedError(400, "invalid NAME") if its bytes are not UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RefusedError(400, f"invalid {name}") from None
    return text


def number(given: Parameters, name: str, default: int, *, bits: int = 32) -> int:
    """An unsigned number; raises RefusedError(400, "invalid NAME")."""
    text = given.get(name)
    if text is None:
        if not 0 <= default < 1 << bits:  # of a file
            raise RefusedError(400, f"invalid {name}")
        return default
    if _UNSIGNED.fullmatch(text) is None or len(text) > _MOST_DIGITS or (value := int(text)) >= 1 << bits:
        raise RefusedError(400, f"invalid {name}")
    return value


def signed(given: Parameters, name: str, default: int) -> int:
    """A signed 64-bit number; raises RefusedError(400, "invalid NAME")."""
    text = given.get(name)
    if text is None:
        return default
    if _SIGNED.fullmatch(text) is None or len(text) > _MOST_DIGITS:
        raise RefusedError(400, f"invalid {name}")
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise RefusedError(400, f"invalid {name}")
    return value


# ── paths ────────────────────────────────────────────────────────────────────────────────────────


_LAST_SLASH = re.compile(rb"(?:/|%2[Ff])\Z")
_HALF_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Action(enum.Enum):
    """What a request asks for: its method, and its path below `/api/:namespace/:queue`.

    `path` is the whole path, as lmstfy's metrics name it. `rights` are what a native token needs on each
    queue of the request.
    """

    PUBLISH = "PUT", "", Right.PRODUCE
    CONSUME = "GET", "", Right.CONSUME
    DESTROY = "DELETE", "", Right.OPERATE
    BULK = "PUT", "/bulk", Right.PRODUCE
    PEEK = "GET", "/peek", Right.READ
    SIZE = "GET", "/size", Right.READ
    REPUBLISH = "PUT", "/job/:job_id", Right.PRODUCE, Right.CONSUME
    PEEK_JOB = "GET", "/job/:job_id", Right.READ
    ACK = "DELETE", "/job/:job_id", Right.CONSUME
    DEAD_HEAD = "GET", "/deadletter", Right.READ
    RESPAWN = "PUT", "/deadletter", Right.OPERATE
    DELETE_DEAD = "DELETE", "/deadletter", Right.OPERATE
    DEAD_SIZE = "GET", "/deadletter/size", Right.READ
    # what lmstfy does not have
    TOUCH = "POST", "/job/:job_id/touch", Right.CONSUME
    RELEASE = "POST", "/job/:job_id/release", Right.CONSUME
    BURY = "POST", "/job/:job_id/bury", Right.CONSUME
    DEAD_LIST = "GET", "/deadletter/job", Right.READ
    RESPAWN_JOB = "PUT", "/deadletter/job/:job_id", Right.OPERATE
    DELETE_DEAD_JOB = "DELETE", "/deadletter/job/:job_id", Right.OPERATE
    # a path with a slash too many
    REDIRECT = "", ""

    __hash__ = object.__hash__  # Enum's own is a Python function; several look-ups per request

    def __init__(self, method: str, below: str, *rights: Right) -> None:
        self.method = method
        self.below = below
        self.path = f"/api/:namespace/:queue{below}"
        self.rights = rights


class Route(NamedTuple):
    """An action and the parts of its path. `queue` of a consume request is a list."""

    action: Action
    namespace: str
    queue: str
    job_id: str = ""


def _by_method(below: str) -> dict[str, Action]:
    return {action.method: action for action in Action if action.method and action.below == below}


_QUEUE, _JOB, _DEAD_JOB = _by_method(""), _by_method("/job/:job_id"), _by_method("/deadletter/job/:job_id")
_BELOW = {(action.method, action.below[1:]): action for action in Action if action.below.count("/") == 1}
_LEASED = {"touch": Action.TOUCH, "release": Action.RELEASE, "bury": Action.BURY}


def refused_early(exchange: Exchange, hosts: HostRule) -> bool:
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
        return _route_of((method, path))
    return _routes[method, path]


def _route_of(request: tuple[str, bytes]) -> Route | None:
    method, path = request
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


_routes = TextCache(_route_of)


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


# ── answers that take time ───────────────────────────────────────────────────────────────────────


class PendingAnswers:
    """Makes answers, each in a task of its own. `failed` answers a request whose answer raised an error."""

    def __init__(self, failed: Callable[[Exchange, Exception], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def make(self, exchange: Exchange, answering: Coroutine[Any, Any, bytes]) -> None:
        """Answer a request when its answer is made."""
        task = asyncio.get_running_loop().create_task(self._make(exchange, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drained(self) -> None:
        """Wait until all of them are made."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _make(self, exchange: Exchange, answering: Coroutine[Any, Any, bytes]) -> None:
        try:
            exchange.answer(await answering)
        except RefusedError as refusal:
            exchange.answer(refusal.answer())
        except Exception as failure:  # noqa: BLE001  # boundary: every request gets an answer
            self._failed(exchange, failure)


async def audited(answering: Coroutine[Any, Any, bytes], write: Callable[..., Awaitable[object]]) -> bytes:
    """The answer of an act of an operator, after `write` has stored its entry in the audit log."""
    try:
        done = await answering
    except RefusedError:
        raise
    except Exception:  # boundary: an act that failed midway may have done something
        await write(status=500)
        raise
    await write(status=status_of(done))
    return done
