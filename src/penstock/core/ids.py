"""Unique names: job ids, worker ids, tokens; and checks of names."""

from __future__ import annotations

import os
import re
import time

from penstock.core.errors import ConfigError
from penstock.core.text import plain, shown

_ID = re.compile(r"[A-Za-z0-9._:@+=~-]{1,128}\Z")
_QUEUE = re.compile(r"[A-Za-z0-9._:@+=~-]{1,255}\Z")


def mint() -> str:
    """A new UUIDv7 (RFC 9562 §5.7): its first 48 bits are the time in ms, so ids sort by age.

    72 of the 74 bits after the time and the version are random. The other two are 0, so that a store has
    a whole digit less to keep (see `stores/redis/layout.py`).
    """
    time_ms, noise = f"{time.time_ns() // 1_000_000:012x}", os.urandom(9).hex()
    return f"{time_ms[:8]}-{time_ms[8:]}-7{noise[:3]}-8{noise[3:6]}-{noise[6:]}"


def mint_many(n: int) -> list[str]:
    """`n` new UUIDv7 in rising order, with one call for random bytes.

    The 72 random bits are one random number that is increased by a constant from id to id (the RFC's
    "monotonic random" method), so that a batch sorts in order of creation.
    """
    ms = time.time_ns() // 1_000_000
    head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"
    noise = int.from_bytes(os.urandom(9), "big") >> 1  # 71 of 72 bits: room for the increments
    ids: list[str] = []
    for _ in range(n):
        digits = f"{noise:018x}"
        ids.append(f"{head}{digits[:3]}-8{digits[3:6]}-{digits[6:]}")
        noise += 0x9E37_79B9_7F4A  # odd and large, so that neighbours share few digits
    return ids


def mint_token() -> str:
    """A new lease token: 96 random bits, so that a stale holder cannot guess its successor's."""
    return os.urandom(12).hex()


def check_id(id: str) -> str:
    """Return the id if it is valid: 1 to 128 of `A-Z a-z 0-9 .

    _ : @ + = ~ -`. Raises ConfigError otherwise.
    """
    text = plain(id) if isinstance(id, str) else ""
    if not _ID.match(text):
        raise ConfigError(
            f"id={shown(id)} cannot be a job's id: use 1 to 128 of the characters A-Z a-z 0-9 . _ : @ + = ~ -"
        )
    return text


def check_queue(name: str) -> str:
    """Return the queue's name if it is valid: 1 to 255 of the characters of an id. Raises ConfigError."""
    text = plain(name) if isinstance(name, str) else ""
    if not _QUEUE.match(text):
        raise ConfigError(
            f"queue={shown(name)} cannot be a queue's name: "
            "use 1 to 255 of the characters A-Z a-z 0-9 . _ : @ + = ~ -"
        )
    return text


def check_namespace(name: str) -> str:
    """Return the namespace if it is valid: empty, or valid as the name of a queue. Raises ConfigError."""
    try:
        return check_queue(name) if name != "" else name
    except ConfigError:
        raise ConfigError(
            f"namespace={name!r} cannot be a namespace: use up to 255 of the characters "
            "A-Z a-z 0-9 . _ : @ + = ~ -"
        ) from None


def check_task_name(name: str) -> str:
    """Return the name if it is valid: 1 to 200 printable characters without spaces.

    Raises ConfigError otherwise.
    """
    text = plain(name) if isinstance(name, str) else ""
    if not 1 <= len(text) <= 200 or not text.isprintable() or " " in text:
        raise ConfigError(
            f"name={shown(name)} cannot be a task's name: use 1 to 200 characters without spaces"
        )
    return text
