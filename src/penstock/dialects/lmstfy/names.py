"""Names of namespaces and queues, and ids of jobs and requests, as lmstfy writes and reads them.

An id is a ULID whose last 4 bytes are the delay; those of version 1 begin with "1".
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time

from penstock.web.text_cache import TextCache

#: The pool of requests whose token has no prefix.
DEFAULT_POOL = "default"
#: Maximum length of the name of a namespace and of a queue, in bytes.
MOST_NAME = 255
#: Maximum length of the name of a queue in a store. A longer one is shortened, with a hash of the whole name.
_MOST_STORED = 255
_HASH = 40
_PART = (_MOST_STORED - _HASH - 2) // 2
_NAME = re.compile(r"[-_A-Za-z0-9]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LIST = re.compile(r"[-_A-Za-z0-9,]+")


def is_name(text: str) -> bool:
    """Whether lmstfy allows this as a namespace; a queue must not begin with "_" besides."""
    return _NAME.fullmatch(text) is not None


def is_queue_list(text: str) -> bool:
    """Whether lmstfy allows this as the list of queues of a consume request."""
    return _LIST.fullmatch(text) is not None


def byte_length(text: str) -> int:
    """The length of a text of a request in bytes, as lmstfy counts it."""
    return len(text.encode("utf-8", "surrogateescape"))


def is_utf8(text: str) -> bool:
    """Whether the bytes of a path's part were UTF-8; others are surrogates in its text."""
    return text.isascii() or _SURROGATE.search(text) is None


def store_queue(namespace: str, queue: str) -> str:
    """The store's queue for a namespace and a queue: `NAMESPACE.QUEUE`.

    lmstfy's names have no dot, so no request can reach a queue of another namespace, nor a queue of Penstock
    that has no dot in its name.
    """
    return _queues[namespace, queue]


def _joined(names: tuple[str, str]) -> str:
    namespace, queue = names
    name = f"{namespace}.{queue}"
    if len(name) <= _MOST_STORED:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH]
    return f"{namespace[:_PART]}.{queue[:_PART]}~{digest}"


_queues = TextCache(_joined)


def is_ours(stored: str) -> bool:
    """Whether a queue of the store can be reached by lmstfy's interface."""
    namespace, dot, queue = stored.partition(".")
    shortened = queue.partition("~")[0]
    return bool(dot) and is_name(namespace) and is_name(shortened)


def split_queue(stored: str) -> tuple[str, str] | None:
    """The namespace and queue of a store's queue; None if it is not lmstfy's, or its name was shortened."""
    namespace, dot, queue = stored.partition(".")
    return (namespace, queue) if dot and is_name(namespace) and is_name(queue) else None


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(one + other for one in _DIGITS for other in _DIGITS)
_VALUE = {digit: value for value, digit in enumerate(_DIGITS)}
_LENGTH = 26
_MOST_DELAY = 2**32 - 1


def _encoded(number: int, pairs: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(10 * (pairs - 1), -1, -10)])


def mint_ulid() -> str:
    """A new ULID: 48 bits of time in ms and 80 random bits."""
    return _encoded(time.time_ns() // 1_000_000, 5) + _encoded(int.from_bytes(os.urandom(10), "big"), 8)


def mint_job_id(delay: int, *, versioned: bool = False) -> str:
    """A new job id; `delay` in seconds."""
    noise = int.from_bytes(os.urandom(6), "big")
    high, low = _delay_digits(delay)
    id = (
        f"{_times.now()}{_PAIRS[noise >> 38]}{_PAIRS[noise >> 28 & 1023]}{_PAIRS[noise >> 18 & 1023]}"
        f"{_PAIRS[noise >> 8 & 1023]}{_PAIRS[(noise & 255) << 2 | high]}{low}"
    )
    return f"1{id}" if versioned else id


@functools.lru_cache(maxsize=256)
def _delay_digits(delay: int) -> tuple[int, str]:
    """The upper two bits of a delay as an id has it, and the digits of the others."""
    number = int.from_bytes(min(delay, _MOST_DELAY).to_bytes(4, "little"), "big")
    return number >> 30, _encoded(number & (1 << 30) - 1, 3)


class _Times:
    """The digits of the current time, made once a ms."""

    __slots__ = ("_digits", "_ms")

    def __init__(self) -> None:
        self._ms = 0
        self._digits = ""

    def now(self) -> str:
        ms = time.time_ns() // 1_000_000
        if ms != self._ms:
            self._ms, self._digits = ms, _encoded(ms, 5)
        return self._digits


_times = _Times()


def elapsed_ms(id: str, now: int) -> int:
    """Milliseconds from the time in a job id to `now`; 0 if that is negative, or if the id has no time."""
    text = id[1:] if len(id) == _LENGTH + 1 else id
    if len(text) != _LENGTH:
        return 0
    made = _time_of(text[:10])
    return 0 if made is None else max(0, now - made)


@functools.lru_cache(maxsize=4_096)
def _time_of(digits: str) -> int | None:
    """The time (ms) in the first digits of an id, which jobs of the same ms share; None if they are none."""
    made = 0
    for digit in digits:
        value = _VALUE.get(digit)
        if value is None:
            return None
        made = made << 5 | value
    return made


class _RequestIds:
    """Ids for the header `X-Request-Id`: unique, not secret, cheap."""

    __slots__ = ("_ms", "_number", "_prefix")

    def __init__(self) -> None:
        self._ms = self._number = 0
        self._prefix = ""

    def next(self) -> str:
        """A new ULID: the time, 60 random bits that are drawn once a ms, and a counter of 20 bits."""
        ms = time.time_ns() // 1_000_000
        if ms != self._ms:
            self._ms = ms
            drawn = int.from_bytes(os.urandom(8), "big") & (1 << 60) - 1
            self._prefix = _encoded(ms, 5) + _encoded(drawn, 6)
        self._number = (self._number + 1) & 0xFFFFF
        return self._prefix + _PAIRS[self._number >> 10] + _PAIRS[self._number & 1023]


request_ids = _RequestIds()
