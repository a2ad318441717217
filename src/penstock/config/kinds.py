"""Kinds of settings: how a value is read from code, TOML and the environment, and how it is shown."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import milliseconds
from penstock.core.ids import check_queue
from penstock.encryption import read_keys

#: The largest arguments, or result, of one job (bytes): a Redis server takes no value above 512 MiB.
_LARGEST_VALUE = 256_000_000


class Kind(msgspec.Struct, frozen=True):
    """A kind of setting.

    - `says`: the kind in words.
    - `read(name, value)`: the value as the program uses it, or ConfigError.
    - `show`: a text that `read` accepts again, except for secrets, which are hidden.
    """

    says: str
    read: Callable[[str, Any], Any]
    show: Callable[[Any], str] = str


def count(least: int, most: int = 1_000_000_000) -> Kind:
    """A whole number from `least` to `most`."""

    def read(name: str, value: Any) -> int:
        number = _whole(value)
        if number is None:
            raise ConfigError(f"{name}={value!r} is not a whole number")
        if not least <= number <= most:
            raise ConfigError(f"{name}={value!r} is out of range: use {least} to {most}")
        return number

    return Kind(f"whole number, {least} or more", read)


def duration(least: str, most: str | None = None) -> Kind:
    """A duration from `least` to `most`. A shorter one would cause a busy loop, or leases that expire."""
    low, high = milliseconds(least), None if most is None else milliseconds(most)

    def read(name: str, value: Any) -> int:
        ms = _duration(name, value)
        if ms < low:
            raise ConfigError(f"{name}={value!r} is too short: the minimum is {least}")
        if high is not None and ms > high:
            raise ConfigError(f"{name}={value!r} is too long: the maximum is {most}")
        return ms

    return Kind("duration", read, _show_duration)


def choice(*words: str) -> Kind:
    """One of these words, in any case."""

    def read(name: str, value: Any) -> str:
        word = value.lower() if isinstance(value, str) else ""
        if word not in words:
            near = did_you_mean(word, words)
            raise ConfigError(f"{name}={value!r} is not one of {', '.join(words)}{near}")
        return word

    return Kind(" or ".join(words), read)


def mask_url(url: str) -> str:
    """Mask the secrets of a URL: the password before the host, and secrets in the query.

    The match is greedy on purpose: a password that should have been percent-encoded is hidden too. If the
    text is not a URL, only its beginning is shown.
    """
    if "://" not in url:
        return re.sub(r"(?s)^([^:@]*)[:@].*", r"\1:***", url)
    head, question, query = url.partition("?")
    head = re.sub(r"^([\w+.-]+://[^:@/]*):.*@", r"\1:***@", head)
    query = re.sub(r"(?i)((?:^|&)[^=&]*(?:passw|secret|token|key|auth)[^=&]*)=[^&]*", r"\1=***", query)
    return head + question + query


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}={value!r} is not text")
    return value


def _cpus(name: str, value: Any) -> str:
    numbers = [part.strip() for part in _text(name, value).split(",") if part.strip()]
    if not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"{name}={value!r} is not a list of processors, such as 0,1")
    return ",".join(numbers)


def _url(name: str, value: Any) -> str:
    text = _text(name, value)
    if "://" not in text:
        raise ConfigError(
            f"{name}={mask_url(text)!r} is not a store URL: write sqlite:///jobs.db, memory:// or redis://HOST"
        )
    return text


def _namespace(name: str, value: Any) -> str:
    if value == "":
        return ""
    try:
        return check_queue(value)
    except ConfigError:
        raise ConfigError(
            f"{name}={value!r} cannot be a namespace: use up to 255 of A-Z a-z 0-9 . _ : @ + = ~ -"
        ) from None


def _queue(name: str, value: Any) -> str:
    return check_queue(value)


def _duration(name: str, value: Any) -> int:
    if isinstance(value, str):
        try:
            value = float(value)  # PENSTOCK_LEASE=15: seconds, as in code and TOML
        except ValueError:
            pass
    return milliseconds(value, what=name)


def _duration_or_none(name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        return None
    return _duration(name, value)


def _show_duration(ms: int | None) -> str:
    """Return the exact duration in the largest unit that divides it: "15s", "90d", "1500ms"."""
    if ms is None:
        return "none"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms % size == 0 and ms:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


_SIZES = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 10**9,
    "kib": 1024,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


def _value_size(name: str, value: Any) -> int:
    size = _size(name, value)
    if size > _LARGEST_VALUE:
        raise ConfigError(f"{name}={value!r} is more than every store can hold: use at most 256MB")
    return size


def _size(name: str, value: Any) -> int:
    text = value if isinstance(value, str) else str(value) if _whole(value) is not None else ""
    match = re.fullmatch(r"(\d{1,30}(?:_\d{1,30}){0,9}) ?([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SIZES:
        raise ConfigError(
            f"{name}={value!r} is not a size: write bytes as a number, or '64kB', '1MB', '1MiB'"
        )
    return int(match[1]) * _SIZES[match[2]]


def _show_size(size: int) -> str:
    for unit, n in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size and size % n == 0:
            return f"{size // n}{unit}"
    return str(size)


def _slots(name: str, value: Any) -> int:
    if value == "auto":
        # the cores that this process may use: in a container or under taskset fewer than the machine has
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slots: int = count(1, 10_000).read(name, value)
    return slots


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ConfigError(f"{name}={value!r} is not true or false")


def _encryption_keys(name: str, value: Any) -> str:
    """Return the keys as one text, since settings are passed on as JSON. Errors never quote a key."""
    if value == "":
        return ""
    return ",".join(b64encode(key).decode() for key in read_keys(value, name))


TEXT = Kind("text", _text)
CPUS = Kind("numbers, or empty", _cpus)
URL = Kind("store URL", _url, mask_url)
NAMESPACE = Kind("name, or empty", _namespace)
QUEUE = Kind("queue name", _queue)
DURATION = Kind("duration", _duration, _show_duration)
DURATION_OR_NONE = Kind("duration or none", _duration_or_none, _show_duration)
SIZE = Kind("size", _size, _show_size)
VALUE_SIZE = Kind("size", _value_size, _show_size)
SLOTS = Kind("whole number or auto", _slots)
FLAG = Kind("true or false", _flag, lambda on: "true" if on else "false")
KEYS = Kind("key, or several", _encryption_keys, lambda keys: "***" if keys else "")
