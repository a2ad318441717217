"""What a peek says when only the verb itself can answer."""

from __future__ import annotations

import enum
from typing import Literal

__all__ = ["ACT", "Act"]


class _Act(enum.Enum):
    ACT = "act"


ACT = _Act.ACT
Act = Literal[_Act.ACT]
