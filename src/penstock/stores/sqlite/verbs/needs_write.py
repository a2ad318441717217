"""NEEDS_WRITE: the answer of a read-only probe if the verb must write."""

from __future__ import annotations

import enum
from typing import Literal

__all__ = ["NEEDS_WRITE", "NeedsWrite"]


class _Probe(enum.Enum):
    NEEDS_WRITE = "needs_write"


NEEDS_WRITE = _Probe.NEEDS_WRITE
NeedsWrite = Literal[_Probe.NEEDS_WRITE]
