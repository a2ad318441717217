"""Encode commands as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis

__all__ = ["encoded", "encoded_all"]

_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # its own types say "exactly one argument"


def encoded(*command: bytes | str | int) -> bytes:
    return _pack(command)


def encoded_all(commands: list[tuple[str, ...]]) -> bytes:
    return b"".join(map(_pack, commands))
