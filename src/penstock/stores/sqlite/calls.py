"""A verb with the way to run it, and one call of a verb."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.needs_write import NeedsWrite

__all__ = ["PendingCall", "Verb"]

P = ParamSpec("P")
R = TypeVar("R")


class Verb(Generic[P, R]):
    """A function of a TransactionContext, and how to run it.

    - `reads`: the verb changes nothing and needs no write lock.
    - `probe`: a read-only function that may answer the verb without a write.
    - `syncs`: True if the verb's writes must survive a power cut once it is answered; or a function of the
      arguments that decides this.
    """

    __slots__ = ("act", "probe", "reads", "syncs")

    def __init__(
        self,
        act: Callable[Concatenate[TransactionContext, P], R],
        *,
        probe: Callable[Concatenate[TransactionContext, P], R | NeedsWrite] | None = None,
        reads: bool = False,
        syncs: Callable[P, bool] | bool = True,
    ) -> None:
        self.act = act
        self.probe = act if reads else probe
        self.reads = reads
        self.syncs: Callable[..., bool] | bool = False if reads else syncs


class PendingCall:
    """One call of a verb. Its answer goes to a future of an event loop, or to a thread waiting for `gate`."""

    __slots__ = (
        "answer",
        "answered",
        "args",
        "asked_at",
        "error",
        "future",
        "loop",
        "namespace",
        "verb",
        "writes",
    )

    def __init__(self, verb: Verb[..., Any], args: tuple[Any, ...], namespace: str | None = None) -> None:
        self.verb = verb
        self.namespace = namespace  # None: that of the connection
        self.args = args
        self.writes = verb.probe is None  # a probe may set it later
        self.answer: Any = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None
        self.answered: threading.Event | None = None
        self.asked_at = 0.0

    @property
    def syncs(self) -> bool:
        """True if the commit must be on disk before the call is answered."""
        syncs = self.verb.syncs
        return syncs if isinstance(syncs, bool) else syncs(*self.args)
