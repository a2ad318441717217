"""What a verb asks of Redis: a script, its keys and arguments, and what may be done when a reply is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Acked", "Call", "Script"]


class Script:
    """A Lua script, and the name under which Redis remembers it."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One script with its keys and arguments, or (`ask`) a plain command.

    `keys[0]`'s slot decides the node in a Cluster. `repeatable`: it may be sent again although it may have
    been carried out (its reply was lost). `replicas` > 0: the answer is an `Acked`, which says how many
    replicas had it before `wait_timeout` was over. `brief`: other calls do not
    depend on it, and it is tried, and a connection waited for, a second at most.
    """

    script: Script | None
    keys: tuple[bytes, ...] = ()
    args: Sequence[bytes | str | int] = ()
    repeatable: bool = True
    replicas: int = 0
    ask: tuple[bytes | str | int, ...] = ()
    brief: bool = False


class Acked(NamedTuple):
    """A call's reply, and how many replicas acknowledged it."""

    reply: Any
    replicas: int
