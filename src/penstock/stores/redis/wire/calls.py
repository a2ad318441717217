"""A call to Redis: a script, its keys and arguments, and whether it may be repeated if its reply is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Acked", "Call", "Script", "ServerRun"]


class Script:
    """A Lua script, and the digest under which Redis caches it."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class ServerRun:
    """The run of a server, from its start to its end, to which a call was sent; others can depend on it."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = ""


class Call(NamedTuple):
    """One script with its keys and arguments, or (`ask`) a plain command.

    - `redis_keys[0]`: its slot determines the node in a Cluster.
    - `repeatable`: the call may be sent again if its reply was lost, although it may have been executed.
    - `replicas` > 0: the answer is an `Acked`, with the number of replicas that acknowledged the call before
      `wait_timeout` ended.
    - `brief`: the call is tried, and a connection is waited for, for a second at most, because other calls do
      not depend on it.
    - `run`: a repeatable call notes here which run of the server it was sent to. One that is not repeatable
      is sent to that run only, and otherwise answered with `ServerRestarted`: a server that restarts, or a
      replica that replaces it, may have lost what the first call has read.
    """

    script: Script | None
    redis_keys: tuple[bytes, ...] = ()
    args: Sequence[bytes | str | int] = ()
    repeatable: bool = True
    replicas: int = 0
    ask: tuple[bytes | str | int, ...] = ()
    brief: bool = False
    run: ServerRun | None = None


class Acked(NamedTuple):
    """The reply of a call, and the number of replicas that acknowledged it."""

    reply: Any
    replicas: int
