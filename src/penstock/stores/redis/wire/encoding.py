"""Commands as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis

__all__ = ["packed", "packed_all"]

_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # its own types say "exactly one argument"


def packed(*command: bytes | str | int) -> bytes:
    return _pack(command)


def packed_all(commands: list[tuple[str, ...]]) -> bytes:
    return b"".join(map(_pack, commands))
