"""Ids as lmstfy makes them: a ULID whose last 4 bytes are the delay; those of version 1 begin with "1"."""

from __future__ import annotations

import functools
import os
import time

__all__ = ["elapsed_ms", "mint_job_id", "mint_ulid", "request_ids"]

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
